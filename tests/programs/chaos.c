/* Threads launch, fill, wait, fork and are interrupted by signals, in a random order; then the process exits in one of
 * many ways. One of every four launches goes through functions that are generated at run time.
 *
 *     chaos SEED HOW [WHEN [LINGER [CHILD [rival | CLIENT]]]]
 *
 * - HOW is the way in which the process ends: `return`, `exit` on another thread while main launches, `_exit`, `abort`,
 *   or a signal (`term` or `kill`).
 * - WHEN is the time at which the process ends: `after` its threads are done, or in their `midst`.
 * - LINGER is the number of milliseconds for which the process continues before it ends.
 * - CHILD is the way in which a child ends; `-` means no child. The child is forked before CUDA starts, does the same
 *   as its parent but with one thread, and writes its stderr to `stderr-PID`.
 * - `rival` adds another CUPTI client to the process. This client enables activity records, as in `rival.c`.
 * - CLIENT is a plugin that is a CUPTI client (`passing_client.c`). The plugin is loaded, records some work and is
 *   unloaded, up to three times.
 *
 * Before the process ends, it prints the parts of its state that must not change:
 * - how often a launch changed errno or the set of blocked signals;
 * - the descriptors that stay open for more than a moment;
 * - the signals that are blocked on the main thread;
 * - the resource limits of the process.
 *
 * The file `done-PID` contains numbers of 8 bytes: the time in nanoseconds at which the process ended, the number of
 * kernels and fills launched by then, and the number of records that the rival received. */
#define _GNU_SOURCE
#include "cuda_mini.h"
#include "cupti.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")
enum { TURNS = 400, MOST_THREADS = 3, ALONE = 20, CODE = 5, CHILD_CODE = 6, LOOKS = 50, BELOW = 1000 };

KERNEL(add_d301, "add_d301", (int n), &n)
KERNEL(mul_d1200, "mul_d1200", (int n), &n)

/* The first fields that are stored in the file `done-PID`. */
static struct done {
    uint64_t ended, launched, rivals;
} *done;

static uint64_t seed, linger;
static const char *how = "return";
static int code = CODE, threads = MOST_THREADS;
static volatile int is_midst, is_fast;
static long errnos, masks;
/* Whether this thread is the only one that launches. If several threads launch, they wait for each other in the driver,
 * which changes errno. */
static volatile int is_alone = 1;
static volatile sig_atomic_t interrupts;
/* Number of launches by each thread; the main thread is the first. */
static volatile uint64_t launched[MOST_THREADS + 1];
static __thread int self;
/* Number of loop iterations of each thread; all bits are set when the thread has ended. */
static volatile uint64_t turns[MOST_THREADS + 1];

static void interrupted(int signal)
{
    (void)signal;
    interrupts++;
    errno = 123;
}

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

/* Counts a launch unless the driver has refused it. */
static void count(cudaError_t error)
{
    launched[self] += error == cudaSuccess;
}

/* Makes a launch, and checks that the launch leaves errno unchanged. Signals are blocked during the launch, because the
 * program's signal handler would change errno. */
OWN_FRAME static void launch(int which)
{
    sigset_t alarm, old;
    SITE("launch");
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGPROF);
    pthread_sigmask(SIG_BLOCK, &alarm, &old);
    errno = 77;
    if (which)
        LAUNCH(add_d301, 1, 32, 0)(1);
    else
        LAUNCH(mul_d1200, 1, 32, 0)(1);
    if (is_alone && errno != 77)
        errnos++;
    count(cudaGetLastError());
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* Makes a launch while signals are not blocked. */
OWN_FRAME static void interrupted_launch(void)
{
    SITE("interrupted_launch");
    LAUNCH(mul_d1200, 1, 32, 0)(1);
    count(cudaGetLastError());
    KEEP_FRAME();
}

OWN_FRAME static void fill(void *memory)
{
    SITE("fill");
    count(cudaMemsetAsync(memory, 0, 4096, 0));
    KEEP_FRAME();
}

/* Launches through a function that is generated at run time and stores a number in rbp. Later, other generated
 * functions replace this function at its address. */
OWN_FRAME static void launch_through_code(int which, uint64_t dice)
{
    static const uint64_t numbers[] = {0, 7, 4096, (uint64_t)-8, 1ull << 46, 0xffff800000001000};
    static __thread unsigned char *code;
    /* push %rbx; push %rbp; sub a random number; movabs a number, %rbp; xchg %rdi, %rsi; call *%rsi; add; pop; pop; ret */
    unsigned char bytes[] = {0x53, 0x55, 0x48, 0x83, 0xec, 0, 0x48, 0xbd, 0, 0, 0, 0, 0, 0, 0, 0, 0x48, 0x87, 0xf7, 0xff, 0xd6,
                             0x48, 0x83, 0xc4, 0, 0x5d, 0x5b, 0xc3};
    if (!code) {
        int all = PROT_READ | PROT_WRITE | PROT_EXEC;
        code = mmap(NULL, 4096, all, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        dice = 0;
    }
    if (dice % 16 == 0) {
        bytes[5] = bytes[24] = (unsigned char)(8 + 16 * (dice / 16 % 7));
        memcpy(bytes + 8, &numbers[dice / 112 % 6], 8);
        memcpy(code, bytes, sizeof bytes);
    }
    ((void (*)(void (*)(int), int))(uintptr_t)code)(launch, which);
    KEEP_FRAME();
}

static void launch_alone(void)
{
    int at;
    is_alone = 1;
    for (at = 0; at < ALONE; at++)
        launch(at % 2);
    is_alone = 0;
}

/* Forks a child. The launches of the forked child fail, because a child of a process that uses CUDA cannot use CUDA. */
static void fork_once(int ends)
{
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        launch(ends % 2);
        if (ends == 0)
            _exit(3);
        if (ends == 1)
            exit(3);
        if (ends == 2)
            execl("/bin/sh", "sh", "-c", "exit 3", (char *)NULL);
        raise(SIGTERM);
        _exit(4);
    }
    int status = 0, expected = ends == 3 ? SIGTERM : 3 << 8;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (child < 0 || status != expected)
        dprintf(1, "a child ended with %x\n", status);
}

static void *worker(void *number)
{
    uint64_t state = seed * 7919 + (uintptr_t)number * 104729 + 1;
    void *memory = NULL;
    /* Clear the signal sets, because Linux fills only their first words. */
    sigset_t before = {{0}}, after = {{0}};
    int turn;
    self = (int)(intptr_t)number + 1;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    for (turn = 0; turn < TURNS || is_midst; turn++, turns[self]++) {
        uint64_t dice = next(&state) % 100;
        if (dice < 50 && seed % 4 == 1)
            launch_through_code(dice % 2, next(&state));
        else if (dice < 50)
            launch(dice % 2);
        else if (dice < 70)
            interrupted_launch();
        else if (dice < 80)
            cudaDeviceSynchronize();
        else if (dice < 84 && !memory)
            cudaMalloc(&memory, 4096);
        else if (dice < 88 && memory)
            fill(memory);
        else if (dice < 90)
            usleep(300);
        else if (dice < 91 && seed % 3 == 0)
            fork_once((int)(next(&state) % 4));
        else if (dice < 92)
            raise(SIGPROF);
        if (is_midst && !is_fast)
            usleep(linger ? 3000 : 200);
    }
    turns[self] = UINT64_MAX;
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    if (memcmp(&before, &after, sizeof before))
        __sync_fetch_and_add(&masks, 1);
    return NULL;
}

/* Returns a hash of the descriptors below 1,000 that are open at every check during 50 ms. Descriptors that exist for
 * less than a millisecond do not count. Another thread opens such a descriptor to read a file. Another thread may also
 * open a descriptor and then move it to a high number, because Linux always assigns the lowest free number. */
static unsigned descriptors(void)
{
    static char times[BELOW];
    unsigned sum = 0;
    int look, fd;
    for (look = 0; look < LOOKS; look++) {
        DIR *all = opendir("/proc/self/fd");
        struct dirent *entry;
        while ((entry = readdir(all)))
            if (entry->d_name[0] != '.' && (fd = atoi(entry->d_name)) < BELOW && fd != dirfd(all))
                times[fd]++;
        closedir(all);
        usleep(1000);
    }
    for (fd = 0; fd < BELOW; fd++)
        if (times[fd] == LOOKS)
            sum = sum * 31 + (unsigned)fd;
    return sum;
}

/* Prints the state without a buffer, because a thread may fork at any time, and its child would print the buffer
 * again. */
static void tell(void)
{
    char line[4096];
    size_t length;
    sigset_t blocked;
    int at;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    length = (size_t)snprintf(line, sizeof line, "errno %ld, masks %ld, descriptors %x, blocked", errnos, masks, descriptors());
    for (at = 1; at < 65; at++)
        line[length++] = sigismember(&blocked, at) > 0 ? '1' : '0';
    for (at = 0; at < RLIM_NLIMITS; at++) {
        struct rlimit limit;
        getrlimit(at, &limit);
        length += (size_t)snprintf(line + length, sizeof line - length, " %lx/%lx", (long)limit.rlim_cur, (long)limit.rlim_max);
    }
    dprintf(1, "%.*s\n", (int)length, line);
}

static int (*next_record)(uint8_t *, size_t, void **);

static void requested(uint8_t **buffer, size_t *size, size_t *most)
{
    *size = 256 << 10;
    *buffer = malloc(*size);
    *most = 0;
}

static void completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
    void *record = NULL;
    (void)context, (void)stream, (void)size;
    while (next_record(buffer, valid, &record) == 0)
        __sync_fetch_and_add(&done->rivals, 1);
    free(buffer);
}

static void rival_comes(void)
{
    static const uint32_t kinds[] = {2, 10};
    int (*ask)(void *, void *), (*enable)(uint32_t);
    unsigned at;
    *(void **)&next_record = cupti("cuptiActivityGetNextRecord");
    *(void **)&ask = cupti("cuptiActivityRegisterCallbacks");
    *(void **)&enable = cupti("cuptiActivityEnable");
    if (ask((void *)requested, (void *)completed))
        exit(21);
    for (at = 0; at < sizeof kinds / sizeof *kinds; at++)
        enable(kinds[at]);
}

/* Waits until every launch in flight has returned. Otherwise CUPTI would deliver the record of such a launch to a
 * client that no longer exists, even without gpuflame. */
static void await_workers(void)
{
    int at;
    for (at = 1; at <= threads; at++) {
        uint64_t turn = turns[at];
        while (turn != UINT64_MAX && turns[at] == turn)
            usleep(100);
    }
}

/* Loads the client's plugin, lets the client record, and unloads the plugin. CUPTI refuses some of the client's calls
 * even without gpuflame, for example after a fatal error. */
static void client_passes(const char *path, uint64_t *state)
{
    static const uint32_t kinds[] = {2, 10};
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    int (*comes)(const char *, uint32_t), (*stops)(void), (*flushes)(void), flushes_at_all = next(state) % 4 != 0;
    unsigned (*had)(void), (*goes)(void);
    if (!plugin)
        exit(22);
    *(void **)&comes = dlsym(plugin, "client_comes");
    *(void **)&stops = dlsym(plugin, "client_stops");
    *(void **)&flushes = dlsym(plugin, "client_flushes");
    *(void **)&had = dlsym(plugin, "client_had");
    *(void **)&goes = dlsym(plugin, "client_goes");
    comes("functions", kinds[next(state) % 2]);
    usleep(next(state) % 4000);
    stops();
    await_workers();
    if (flushes_at_all)
        flushes();
    __sync_fetch_and_add(&done->rivals, had());
    goes();
    dlclose(plugin);
}

static void count_in_file(void)
{
    char name[64];
    int file;
    snprintf(name, sizeof name, "done-%d", getpid());
    file = open(name, O_CREAT | O_RDWR, 0644);
    if (file < 0 || ftruncate(file, sizeof *done) != 0)
        exit(10);
    done = mmap(NULL, sizeof *done, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
}

/* Sleeps for the whole time, even if signals interrupt the sleep. */
static void sleep_for(uint64_t milliseconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += milliseconds / 1000;
    until.tv_nsec += milliseconds % 1000 * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
}

/* Stores the number of launches made so far. gpuflame must output all these launches, however the process ends. */
static void come_to_the_end(void)
{
    struct timespec now;
    uint64_t sum = 0;
    int at;
    for (at = 0; at <= MOST_THREADS; at++)
        sum += launched[at];
    clock_gettime(CLOCK_REALTIME, &now);
    done->launched = sum;
    done->ended = now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void *ends(void *nothing)
{
    come_to_the_end();
    exit(code);
    return nothing;
}

/* Ends the process in the way `how`; if main must return, this function returns. */
static void act(const char *rival)
{
    struct itimerval often = {{0, 700}, {0, 700}};
    pthread_t ids[MOST_THREADS], last;
    uint64_t state = seed * 31 + 7;
    intptr_t at;
    count_in_file();
    launch_alone();
    setitimer(ITIMER_PROF, &often, NULL);
    for (at = 0; at < threads; at++)
        pthread_create(&ids[at], NULL, worker, (void *)at);
    if (!strcmp(rival, "rival")) {
        usleep(next(&state) % 2000);
        rival_comes();
    } else if (strcmp(rival, "-")) {
        int times = 1 + (int)(next(&state) % 3);
        while (times--) {
            usleep(next(&state) % 2000);
            client_passes(rival, &state);
        }
    }
    if (!is_midst) {
        for (at = 0; at < threads; at++)
            pthread_join(ids[at], NULL);
        launch_alone();
        if (strcmp(how, "exit"))
            cudaDeviceSynchronize();
    }
    tell();
    sleep_for(linger);
    is_fast = 1;
    if (is_midst)
        usleep(next(&state) % 3000);
    if (!strcmp(how, "exit")) {
        pthread_create(&last, NULL, ends, NULL);
        for (;;)
            interrupted_launch();
    }
    come_to_the_end();
    if (!strcmp(how, "_exit"))
        _exit(code);
    if (!strcmp(how, "abort"))
        abort();
    if (!strcmp(how, "kill"))
        raise(SIGKILL);
    if (!strcmp(how, "term")) {
        /* Sends the signal to the main thread or to a thread that is launching. */
        pthread_kill(is_midst && next(&state) % 2 ? ids[0] : pthread_self(), SIGTERM);
        for (;;)
            pause();
    }
}

/* Forks before this process uses CUDA, so the child can use CUDA. */
static void fork_early(const char *child_how)
{
    int status = 0, file;
    char name[64];
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        snprintf(name, sizeof name, "stderr-%d", getpid());
        file = open(name, O_CREAT | O_WRONLY | O_APPEND, 0644);
        if (file < 0 || dup2(file, 2) < 0 || close(file) != 0)
            _exit(11);
        how = child_how;
        code = CHILD_CODE;
        threads = 1;
        act("-");
        exit(code);
    }
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    dprintf(1, "the child ended with %x\n", status);
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = interrupted, .sa_flags = SA_RESTART};
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    how = argc > 2 ? argv[2] : how;
    is_midst = argc > 3 && !strcmp(argv[3], "midst");
    linger = argc > 4 ? strtoull(argv[4], NULL, 10) : 0;
    sigaction(SIGPROF, &action, NULL);
    if (argc > 5 && strcmp(argv[5], "-"))
        fork_early(argv[5]);
    act(argc > 6 ? argv[6] : "-");
    return code;
}
