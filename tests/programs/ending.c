/* Ends in one of the ways in which programs end without returning from main, or by a signal.
 *
 *     ending flat_out THREADS | exits | quick | main_ends | status SIGNAL [ignored]
 *     ending for_ever THREADS | beside THREADS | graphs_for_ever
 *     ending left HOW [TEXT]
 *     ending idle exit
 *     ending WHERE SIGNAL [HOW]
 *
 * The modes of the first line end with code 7, except `main_ends`:
 *
 * - `flat_out`: THREADS threads launch without a pause while main exits.
 * - `exits`: four threads call exit at the same time.
 * - `quick`: the program calls quick_exit().
 * - `main_ends`: main ends by pthread_exit; another thread launches and ends after main.
 * - `status`: the program stores the kernel's view of its signals in a file.
 *
 * The modes of the second line run until a signal ends the program:
 *
 * - `for_ever`: THREADS threads launch, and main is one of these threads.
 * - `beside`: THREADS threads launch, and main only waits.
 * - `graphs_for_ever`: the program launches graphs of three kernels.
 *
 * The other lines:
 *
 * - `left` launches 1,000 more kernels, which are complete before the program ends. Each time that a file `more`
 *   appears, it launches once. When a file `go` exists, the program ends without exit handlers. HOW is the way in which
 *   it ends. `_exit` ends with code 7, and `exit` is a normal exit. `abort` and `fault` end by a signal. `exec` becomes
 *   the program true, and `exec_again` becomes this program with the mode `quick`. `fork` forks a child that launches
 *   nothing and calls _exit, and then aborts. `daemon` calls daemon(), whose child continues alone and calls _exit.
 * - `idle` initialises CUDA, launches nothing, creates a file `ready`, and exits when a file `go` exists.
 * - With WHERE, the program sends the signal to itself after main has launched 1,000 kernels.
 *
 * WHERE is the state of the program when the signal arrives:
 *
 * - `launching` or `malloc`: main launches, or allocates memory.
 * - `sleeping`: main waits in a read; if the read were interrupted, main would continue and print.
 * - `loading`: main loads libraries.
 * - `heap`: main blocks the allocator by `heap.c`, and launches 1,000 more kernels.
 * - `thread`: the signal arrives on another thread, which launches.
 * - `signal_stack`: the signal arrives on a thread with a small signal stack.
 * - `exiting`: the signal arrives in the middle of exit().
 *
 * HOW of a signal:
 *
 * - `twice`: the signal is sent again after 20 ms.
 * - `later`: the signal is sent again after 1.5 s, while the writing of outputs is blocked (`filesystem.c`).
 * - `own`: main has its own signal handler, which prints and exits with code 5.
 * - `default`: main restores the default action.
 * - `ignored`: the signal is ignored, and main exits with code 6.
 * - `forked`: the signal goes to a child, which main forks after everything else. Main exits with code 6 if the signal
 *   ended the child.
 * - `spawned`: as `forked`, but the child is a program that main runs. */
#define _GNU_SOURCE
#include "cuda_mini.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define OWN_FRAME __attribute__((noinline, noclone))
enum { CODE = 7 };

KERNEL(step_d1000, "step_d1000", (int n), &n)

/* Number of launches that have returned, for each thread. The numbers are in a mapped file, which outlives the
 * process. */
static volatile long *launched;

static void count_in_file(void)
{
    int file = open("launched", O_CREAT | O_RDWR, 0644);
    if (file < 0 || ftruncate(file, 4096) != 0)
        exit(10);
    launched = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
}

OWN_FRAME static void launch(int thread)
{
    SITE("launch");
    LAUNCH(step_d1000, 1, 32, 0)(thread);
    launched[thread]++;
}

static void say(const char *text)
{
    if (write(1, text, strlen(text)) < 0)
        _exit(11);
}

static void *launch_for_ever(void *number)
{
    for (;;)
        launch((int)(long)number);
    return NULL;
}

static void start(void *(*function)(void *), long number)
{
    pthread_t id;
    if (pthread_create(&id, NULL, function, (void *)number) != 0)
        exit(12);
}

static void flat_out(long threads)
{
    long i;
    for (i = 1; i <= threads; i++)
        start(launch_for_ever, i);
    for (i = 1; i <= threads; i++)
        while (launched[i] < 20000)
            usleep(100);
    exit(CODE);
}

static void for_ever(long threads)
{
    long i;
    for (i = 2; i <= threads; i++)
        start(launch_for_ever, i);
    launch_for_ever((void *)1);
}

static void beside(long threads)
{
    long i;
    for (i = 1; i <= threads; i++)
        start(launch_for_ever, i);
    for (;;)
        pause();
}

/* Removes the file of this name; returns whether it existed. */
static int is_told(const char *name)
{
    return unlink(name) == 0;
}

static void left(const char *how)
{
    static volatile int *volatile nowhere;
    int i;
    for (i = 0; i < 1000; i++)
        launch(1);
    cudaDeviceSynchronize();
    say("ready\n");
    while (!is_told("go")) {
        if (is_told("more")) {
            launch(1);
            cudaDeviceSynchronize();
        }
        usleep(1000);
    }
    if (!strcmp(how, "_exit"))
        _exit(CODE);
    if (!strcmp(how, "fault"))
        *nowhere = 0;
    if (!strcmp(how, "exec"))
        execlp("true", "true", NULL);
    if (!strcmp(how, "exec_again"))
        execl("/proc/self/exe", "ending", "quick", NULL);
    if (!strcmp(how, "exit"))
        exit(CODE);
    if (!strcmp(how, "daemon")) {
        if (daemon(1, 1) != 0)
            exit(19);
        usleep(300000);
        _exit(0);
    }
    if (!strcmp(how, "fork") && fork() == 0) {
        usleep(300000);
        _exit(0);
    }
    if (!strcmp(how, "fork"))
        wait(NULL);
    abort();
}

static void idle(void)
{
    cudaFree(0);
    cudaDeviceSynchronize();
    if (open("ready", O_CREAT | O_WRONLY, 0644) < 0)
        exit(21);
    while (!is_told("go"))
        usleep(1000);
    exit(CODE);
}

OWN_FRAME static void launch_graph(cudaGraphExec_t graph, cudaStream_t stream)
{
    SITE("launch_graph");
    cudaGraphLaunch(graph, stream);
    launched[1]++;
}

static void graphs_for_ever(void)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int i;
    cudaStreamCreate(&stream);
    cudaStreamBeginCapture(stream, 0);
    for (i = 0; i < 3; i++)
        LAUNCH(step_d1000, 1, 32, stream)(i);
    if (cudaStreamEndCapture(stream, &graph) != 0 || cudaGraphInstantiate(&exec, graph, 0) != 0)
        exit(18);
    for (;;)
        launch_graph(exec, stream);
}

static pthread_barrier_t together;

static void *exit_with_the_others(void *nothing)
{
    (void)nothing;
    pthread_barrier_wait(&together);
    exit(CODE);
}

static void keep_status(void)
{
    char text[8192];
    FILE *from = fopen("/proc/self/status", "r"), *to = fopen("status", "w");
    size_t length = from ? fread(text, 1, sizeof text, from) : 0;
    exit(to && fwrite(text, 1, length, to) == length && fclose(to) == 0 ? CODE : 17);
}

static void exits(void)
{
    long i;
    pthread_barrier_init(&together, NULL, 4);
    for (i = 0; i < 3; i++)
        start(exit_with_the_others, i);
    exit_with_the_others(NULL);
}

static void *outlive_main(void *nothing)
{
    int i;
    usleep(200000);
    for (i = 0; i < 1000; i++)
        launch(1);
    cudaDeviceSynchronize();
    return nothing;
}

/* Number of the signal, and whether it is sent twice or sent again later. A thread that blocks all signals sends it to
 * the process or to the thread `target`. */
static int signal_number, is_twice, is_later;
static pthread_t target;

static void *send(void *to_thread)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    usleep(20000);
    if (to_thread)
        pthread_kill(target, signal_number);
    else
        kill(getpid(), signal_number);
    usleep(is_later ? 1500000 : 20000);
    if (is_twice || is_later)
        kill(getpid(), signal_number);
    return NULL;
}

static void send_soon(int to_thread)
{
    start(send, to_thread);
}

static void *take_on_small_stack(void *nothing)
{
    stack_t small;
    memset(&small, 0, sizeof small);
    small.ss_size = MINSIGSTKSZ > 8192 ? MINSIGSTKSZ : 8192;
    small.ss_sp = malloc(small.ss_size);
    sigaltstack(&small, NULL);
    target = pthread_self();
    send_soon(1);
    return launch_for_ever(nothing);
}

static void *take_on_thread(void *nothing)
{
    target = pthread_self();
    send_soon(1);
    return launch_for_ever(nothing);
}

static void in_malloc(void)
{
    void *blocks[64] = {0};
    unsigned i = 0;
    for (;; i++) {
        free(blocks[i % 64]);
        blocks[i % 64] = malloc(2000 + i * 7919 % 60000);
    }
}

static void in_held_heap(void)
{
    void (*hold)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "hold_the_heap");
    void (*hold_for_good)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "hold_the_heap_for_good");
    int i;
    if (!hold || !hold_for_good)
        exit(16);
    hold();
    for (i = 0; i < 1000; i++) {
        launch(0);
        usleep(300);
    }
    hold_for_good();
    kill(getpid(), signal_number);
    for (;;)
        pause();
}

static void in_dlopen(void)
{
    for (;;) {
        void *library = dlopen("libm.so.6", RTLD_NOW | RTLD_NOLOAD);
        if (library)
            dlclose(library);
        library = dlopen("libutil.so.1", RTLD_NOW);
        if (library)
            dlclose(library);
    }
}

/* Forks a child that stops gpuflame's threads for `micros` microseconds, as a debugger does. */
static void hold_writers(useconds_t micros)
{
    pid_t parent = getpid(), child;
    char held = 0;
    int ends[2];
    if (pipe(ends) != 0)
        exit(14);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    child = fork();
    if (child == 0) {
        char path[64], name[32];
        struct dirent *entry;
        DIR *threads;
        snprintf(path, sizeof path, "/proc/%d/task", parent);
        threads = opendir(path);
        while (threads && (entry = readdir(threads))) {
            pid_t thread = atoi(entry->d_name);
            FILE *file;
            snprintf(path, sizeof path, "/proc/%d/task/%d/comm", parent, thread);
            file = thread > 0 ? fopen(path, "r") : NULL;
            if (file && fgets(name, sizeof name, file) && !strncmp(name, "gpuflame", 8) &&
                ptrace(PTRACE_SEIZE, thread, 0, 0) == 0 && ptrace(PTRACE_INTERRUPT, thread, 0, 0) == 0 &&
                waitpid(thread, NULL, __WALL) == thread)
                held++;
            if (file)
                fclose(file);
        }
        if (write(ends[1], &held, 1) != 1)
            _exit(1);
        usleep(micros);
        _exit(0);
    }
    if (read(ends[0], &held, 1) != 1 || !held)
        exit(16);
}

static void exit_and_get_it(void)
{
    hold_writers(500000);
    send_soon(0);
    exit(CODE);
}

static void own_action(int signal)
{
    (void)signal;
    say("mine\n");
    exit(5);
}

/* Creates a child by fork, or by fork and exec, and ends it by the signal. */
static void child(int is_spawned)
{
    int status;
    pid_t id = fork();
    if (id == 0) {
        if (is_spawned)
            execlp("sleep", "sleep", "60", NULL);
        for (;;)
            pause();
    }
    usleep(100000);
    kill(id, signal_number);
    if (waitpid(id, &status, 0) != id || !WIFSIGNALED(status) || WTERMSIG(status) != signal_number)
        exit(13);
    exit(6);
}

static void await_signal(const char *where, const char *how)
{
    int i;
    for (i = 0; i < 1000; i++)
        launch(0);
    is_twice = !strcmp(how, "twice");
    is_later = !strcmp(how, "later");
    if (is_later)
        close(open("wait", O_WRONLY | O_CREAT, 0600));
    if (!strcmp(how, "own"))
        signal(signal_number, own_action);
    if (!strcmp(how, "default"))
        signal(signal_number, SIG_DFL);
    if (!strcmp(how, "forked") || !strcmp(how, "spawned"))
        child(!strcmp(how, "spawned"));
    if (!strcmp(where, "thread"))
        start(take_on_thread, 1);
    else if (!strcmp(where, "signal_stack"))
        start(take_on_small_stack, 1);
    else if (!strcmp(where, "exiting"))
        exit_and_get_it();
    else if (strcmp(where, "told") && strcmp(where, "heap"))
        send_soon(0);
    say("ready\n");
    if (!strcmp(how, "ignored")) {
        usleep(200000);
        exit(6);
    }
    if (!strcmp(where, "launching"))
        launch_for_ever((void *)2);
    else if (!strcmp(where, "malloc"))
        in_malloc();
    else if (!strcmp(where, "heap"))
        in_held_heap();
    else if (!strcmp(where, "loading"))
        in_dlopen();
    else if (!strcmp(where, "sleeping") || !strcmp(where, "told")) {
        char byte;
        int ends[2];
        if (pipe(ends) != 0)
            exit(14);
        i = (int)read(ends[0], &byte, 1);
        say(i < 0 && errno == EINTR ? "interrupted\n" : "went on\n");
        exit(15);
    } else
        for (;;)
            pause();
}

int main(int count, char **arguments)
{
    const char *mode = count > 1 ? arguments[1] : "";
    int i;
    alarm(120);
    count_in_file();
    if (count > 2)
        signal_number = atoi(arguments[2]);
    if (count > 3 && !strcmp(arguments[3], "ignored"))
        signal(signal_number, SIG_IGN);
    if (!strcmp(mode, "idle"))
        idle();
    for (i = 0; i < 100; i++)
        launch(0);
    if (!strcmp(mode, "flat_out"))
        flat_out(atol(arguments[2]));
    else if (!strcmp(mode, "graphs_for_ever"))
        graphs_for_ever();
    else if (!strcmp(mode, "for_ever"))
        for_ever(atol(arguments[2]));
    else if (!strcmp(mode, "beside"))
        beside(atol(arguments[2]));
    else if (!strcmp(mode, "left"))
        left(arguments[2]);
    else if (!strcmp(mode, "exits"))
        exits();
    else if (!strcmp(mode, "quick"))
        quick_exit(CODE);
    else if (!strcmp(mode, "status"))
        keep_status();
    else if (!strcmp(mode, "main_ends")) {
        start(outlive_main, 1);
        pthread_exit(NULL);
    } else
        await_signal(mode, count > 3 ? arguments[3] : "");
    return 16;
}
