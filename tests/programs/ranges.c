/* A program with ranges of all kinds. At every launch, the program's call site lists the functions that the thread is
 * in, followed by the ranges that should be open, outermost first.
 *
 *     ranges [--nvtx] [--user] [--steps N] [--deep N] [--names N] */
#include "cuda_mini.h"
#ifdef REAL_NVTX
#include <nvtx3/nvToolsExt.h>
static inline nvtxEventAttributes_t nvtx_text(const char *text)
{
    nvtxEventAttributes_t attributes = {0};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
    attributes.message.ascii = text;
    return attributes;
}
static inline nvtxEventAttributes_t nvtx_registered(nvtxStringHandle_t text)
{
    nvtxEventAttributes_t attributes = nvtx_text(NULL);
    attributes.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    attributes.message.registered = text;
    return attributes;
}
#else
#include "nvtx_mini.h"
#endif

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef LINKED
#include <gpuflame.h>
#endif

#define OWN_FRAME __attribute__((noinline, noclone))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

KERNEL(work_d1000, "work_d1000", (int n), &n)

static cudaStream_t stream;

#define LAUNCH_AT(path)                                                                                 \
    do {                                                                                                \
        SITE(path);                                                                                     \
        LAUNCH(work_d1000, 1, 32, stream)(1);                                                           \
        KEEP_FRAME();                                                                                   \
    } while (0)

static void expect(int is, int should, const char *what)
{
    if (is != should) {
        fprintf(stderr, "%s answers %d, not %d\n", what, is, should);
        exit(3);
    }
}

OWN_FRAME static void pushed(int tracked)
{
    LAUNCH_AT("main;pushed");
    expect(nvtxRangePushA("step"), tracked ? 0 : NVTX_NO_PUSH_POP_TRACKING, "the first push");
    LAUNCH_AT("main;pushed;[range]step");
    expect(nvtxRangePushA("layer-0"), tracked ? 1 : NVTX_NO_PUSH_POP_TRACKING, "the second push");
    LAUNCH_AT("main;pushed;[range]step;[range]layer-0");
    expect(nvtxRangePop(), tracked ? 1 : NVTX_NO_PUSH_POP_TRACKING, "the first pop");
    nvtxRangePushW(L"layer \x3b1");
    LAUNCH_AT("main;pushed;[range]step;[range]layer \xce\xb1");
    nvtxRangePop();
    LAUNCH_AT("main;pushed;[range]step");
    expect(nvtxRangePop(), tracked ? 0 : NVTX_NO_PUSH_POP_TRACKING, "the last pop");
    LAUNCH_AT("main;pushed");
    nvtxRangePop();
    LAUNCH_AT("main;pushed");
}

/* Pushes ranges in several NVTX domains. A pop closes the range that was opened last in the pop's own domain, whatever
 * ranges other domains have pushed since. */
OWN_FRAME static void in_domains(nvtxDomainHandle_t net, nvtxStringHandle_t reduce)
{
    nvtxEventAttributes_t text = nvtx_text("gather; all"), known = nvtx_registered(reduce);
    nvtxDomainRangePushEx(net, &known);
    nvtxRangePushA("inside");
    LAUNCH_AT("main;in_domains;[range net]reduce;[range]inside");
    nvtxDomainRangePop(net);
    LAUNCH_AT("main;in_domains;[range]inside");
    nvtxDomainRangePushEx(net, &text);
    LAUNCH_AT("main;in_domains;[range]inside;[range net]gather； all");
    nvtxRangePop();
    LAUNCH_AT("main;in_domains;[range net]gather； all");
    nvtxDomainRangePop(net);
    LAUNCH_AT("main;in_domains");
}

/* Pushes ranges in a separate NVTX domain, which a test excludes. */
OWN_FRAME static void noisy(nvtxDomainHandle_t noise)
{
    nvtxEventAttributes_t text = nvtx_text("noise");
    nvtxDomainRangePushEx(noise, &text);
    nvtxRangePushA("kept");
    LAUNCH_AT("main;noisy;[range noise]noise;[range]kept");
    nvtxDomainRangePop(noise);
    nvtxRangePop();
    LAUNCH_AT("main;noisy");
}

/* Starts and ends ranges by id; such ranges may overlap without being nested. */
OWN_FRAME static void started(nvtxDomainHandle_t net)
{
    nvtxEventAttributes_t text = nvtx_text("request-2");
    nvtxRangeId_t one = nvtxRangeStartA("request-1"), two = nvtxDomainRangeStartEx(net, &text);
    LAUNCH_AT("main;started;[range]request-1;[range net]request-2");
    nvtxRangeEnd(one);
    LAUNCH_AT("main;started;[range net]request-2");
    nvtxRangeEnd(one);
    nvtxRangeEnd(12345);
    nvtxRangeEnd(~0ull);
    LAUNCH_AT("main;started;[range net]request-2");
    nvtxDomainRangeEnd(net, two);
    LAUNCH_AT("main;started");
}

/* This function runs on another thread. The function ends a range that the main thread started, and opens ranges on its
 * own thread. */
static void *end_it(void *id)
{
    nvtxRangePushA("other thread");
    nvtxRangeEnd(*(nvtxRangeId_t *)id);
    SITE("end_it;[range]other thread");
    LAUNCH(work_d1000, 1, 32, stream)(1);
    nvtxRangePop();
    return NULL;
}

OWN_FRAME static void ended_elsewhere(void)
{
    int i;
    for (i = 0; i < 200; i++) {
        nvtxRangeId_t id = nvtxRangeStartA("handed on");
        pthread_t other;
        LAUNCH_AT("main;ended_elsewhere;[range]handed on");
        pthread_create(&other, NULL, end_it, &id);
        pthread_join(other, NULL);
        LAUNCH_AT("main;ended_elsewhere");
    }
}

OWN_FRAME static void deep(int count)
{
    int i;
    for (i = 0; i < count; i++)
        nvtxRangePushA("deeper");
    SITE("main;deep");
    LAUNCH(work_d1000, 1, 32, stream)(1);
    for (i = 0; i < count; i++)
        nvtxRangePop();
    LAUNCH_AT("main;deep");
}

OWN_FRAME static void named(int count)
{
    char name[32];
    int i;
    for (i = 0; i < count; i++) {
        snprintf(name, sizeof name, "item-%d", i);
        nvtxRangePushA(name);
        SITE("main;named");
        LAUNCH(work_d1000, 1, 32, stream)(1);
        KEEP_FRAME();
        nvtxRangePop();
    }
}

#ifdef LINKED
OWN_FRAME static void of_the_user(void)
{
    expect(gpuflame_range_push("decode"), GPUFLAME_OK, "a push");
    nvtxRangePushA("step");
    LAUNCH_AT("main;of_the_user;[range]decode;[range]step");
    expect(gpuflame_range_pop(), GPUFLAME_OK, "a pop");
    LAUNCH_AT("main;of_the_user;[range]step");
    expect(gpuflame_range_pop(), GPUFLAME_ERROR_STATE, "a pop too many");
    nvtxRangePop();
    expect(gpuflame_range_push(NULL), GPUFLAME_ERROR_SETTING, "a push of nothing");
    gpuflame_range_push("");
    LAUNCH_AT("main;of_the_user;[range](no name)");
    gpuflame_range_pop();
}

/* Captures a graph while one range is open, and launches it while another range is open. */
OWN_FRAME static void with_a_graph(void)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaStreamBeginCapture(stream, 0);
    gpuflame_range_push("captured");
    LAUNCH_AT("main;with_a_graph;[range]captured");
    gpuflame_range_pop();
    cudaStreamEndCapture(stream, &graph);
    cudaGraphInstantiate(&exec, graph, 0);
    gpuflame_range_push("replay");
    SITE("main;with_a_graph;[range]replay");
    cudaGraphLaunch(exec, stream);
    KEEP_FRAME();
    gpuflame_range_pop();
}
#endif

int main(int argc, char **argv)
{
    int steps = 1, is_deep = 0, names = 0, tracked = getenv("NVTX_INJECTION64_PATH") != NULL, at, i;
    nvtxDomainHandle_t net = nvtxDomainCreateA("net"), noise = nvtxDomainCreateA("noise");
    nvtxStringHandle_t reduce = nvtxDomainRegisterStringA(net, "reduce");
    for (at = 1; at + 1 < argc; at += 2) {
        int value = atoi(argv[at + 1]);
        if (!strcmp(argv[at], "--steps"))
            steps = value;
        else if (!strcmp(argv[at], "--deep"))
            is_deep = value;
        else if (!strcmp(argv[at], "--names"))
            names = value;
        else if (!strcmp(argv[at], "--tracked"))
            tracked = value;
    }
    cudaStreamCreate(&stream);
    for (i = 0; i < steps; i++) {
        pushed(tracked);
        in_domains(net, reduce);
        noisy(noise);
        started(net);
    }
    ended_elsewhere();
    if (is_deep)
        deep(is_deep);
    if (names)
        named(names);
#ifdef LINKED
    of_the_user();
    with_a_graph();
#endif
    cudaDeviceSynchronize();
    return 0;
}
