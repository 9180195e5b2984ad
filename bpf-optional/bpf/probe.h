/* The records that probe.bpf.c writes and that src/wire.rs parses. When one of these two files changes, the other must
 * change too. All numbers are in the machine's byte order. Each record begins with a `struct head`. */
#ifndef GPUFLAME_PROBE_H
#define GPUFLAME_PROBE_H

#define MOST_FRAMES 127       /* the kernel's maximum, unless kernel.perf_event_max_stack was set higher */
#define MOST_KERNEL_FRAMES 64
#define COMM_BYTES 16

enum kind { HIT = 1, MARKER = 2, MAPPING = 3, FORK = 4 };
enum dropped { DROPPED_HITS, DROPPED_MARKERS, DROPPED_MAPPINGS, DROPPED_KINDS };

struct head {
    __u32 kind;
    __u32 pid;                /* in the PID namespace of gpuflame-bpf; 0 if the process has no id there */
    __u32 tid;
    __u32 cpu;
    __u64 time;               /* CLOCK_MONOTONIC, ns */
    __u64 mm;                 /* identifies the address space, which all threads share and exec replaces */
    char comm[COMM_BYTES];
};

/* A call of a probed function begins. This struct ends with the user frames, and the kernel frames come after it. */
struct hit {
    struct head head;
    __u64 cookie;             /* id of the probe that was hit */
    __u64 stack_pointer;
    __u64 caller;             /* the return address at the stack pointer */
    __s32 user_bytes;         /* size of the user frames in bytes, or -errno */
    __s32 kernel_bytes;
    __u64 user[MOST_FRAMES];
};

struct hit_with_kernel {
    struct hit hit;
    __u64 kernel[MOST_KERNEL_FRAMES];
};

/* libgpuflame.so reports CUPTI's correlation id for the launch that this thread is making. */
struct marker {
    struct head head;
    __u32 correlation;
    __u32 what;               /* 0: a kernel launch, 1: a graph launch, 2: a copy or fill */
};

/* Executable code from a file was mapped. If `end` is 0, exec has replaced all mappings. */
struct mapping {
    struct head head;
    __u64 start;
    __u64 end;
    __u64 offset;             /* offset in the file, in bytes */
    __u64 inode;
    __u32 device;
    __u32 stopped;            /* whether the process waits for SIGCONT */
};

struct forked {
    struct head head;
    __u64 child_mm;
    __u32 child;
    __u32 unused;
};

#endif
