/** Launches from Java threads, often enough that methods are compiled while the program runs. Arguments: LIBRARY
 * THREADS LAUNCHES */
public class Threads {
    static native void launch(int n);

    static native void await();

    static int dig(int depth, int launch) {
        if (depth > 0) {
            return dig(depth - 1, launch) + 1;
        }
        launch(launch);
        return 0;
    }

    public static void main(String[] arguments) throws InterruptedException {
        System.load(arguments[0]);
        int launches = Integer.parseInt(arguments[2]);
        Thread[] threads = new Thread[Integer.parseInt(arguments[1])];
        for (int number = 0; number < threads.length; number++) {
            int first = number;
            threads[number] = new Thread(() -> {
                for (int launch = 0; launch < launches; launch++) {
                    dig((first + launch) % 20, launch);
                    // This array is garbage for Java's collector.
                    byte[] garbage = new byte[10_000];
                    garbage[launch % garbage.length] = 1;
                }
            });
            threads[number].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        await();
    }
}
