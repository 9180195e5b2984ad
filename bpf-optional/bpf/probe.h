/* What the probes tell the command: the wire between probe.bpf.c and src/wire.rs, which change together.
 * All numbers are in the machine's order of bytes; a record begins with its head. */
#ifndef GPUFLAME_PROBE_H
#define GPUFLAME_PROBE_H

#define MOST_FRAMES 127       /* what the kernel walks unless kernel.perf_event_max_stack was set higher */
#define MOST_KERNEL_FRAMES 64
#define COMM_BYTES 16

enum kind { HIT = 1, MARKER = 2, MAPPING = 3, FORK = 4 };
enum dropped { DROPPED_HITS, DROPPED_MARKERS, DROPPED_MAPPINGS, DROPPED_KINDS };

struct head {
    __u32 kind;
    __u32 pid;                /* of the command's own namespace; 0 where it has none there */
    __u32 tid;
    __u32 cpu;
    __u64 time;               /* CLOCK_MONOTONIC, ns */
    __u64 mm;                 /* names the address space: a new one after exec, the same for all threads */
    char comm[COMM_BYTES];
};

/* A call of a probed function begins. The frames stand behind it: the user's, then the kernel's. */
struct hit {
    struct head head;
    __u64 cookie;             /* which probe */
    __u64 stack_pointer;
    __u64 caller;             /* the return address that lies there */
    __s32 user_bytes;         /* of frames, or -errno */
    __s32 kernel_bytes;
    __u64 user[MOST_FRAMES];
};

struct hit_with_kernel {
    struct hit hit;
    __u64 kernel[MOST_KERNEL_FRAMES];
};

/* libgpuflame.so says under which id CUPTI has the launch that this thread is in. */
struct marker {
    struct head head;
    __u32 correlation;
    __u32 what;               /* 0: a launch, 1: a graph's, 2: a copy or fill */
};

/* Code of a file was mapped; where `end` is 0: all was, by exec. */
struct mapping {
    struct head head;
    __u64 start;
    __u64 end;
    __u64 offset;             /* in the file, bytes */
    __u64 inode;
    __u32 device;
    __u32 stopped;            /* the process waits for SIGCONT */
};

struct forked {
    struct head head;
    __u64 child_mm;
    __u32 child;
    __u32 unused;
};

#endif
