// SPDX-License-Identifier: GPL-2.0-only OR MIT
/* The half of gpuflame-bpf that runs in the kernel. This half only reports events. The only decision that it makes is
 * which processes are watched. bpf-optional/rebuild compiles it to probe.bpf.o, which is checked in. */
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <linux/types.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "probe.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define SIGSTOP 19
#define SYS_MMAP 9
#define PROT_EXEC 4
#define MAP_ANONYMOUS 0x20
#define PAGE_SIZE 4096UL
#define MOST_NAMESPACES 8 /* the kernel allows 32 levels, but no system uses so many */

/* Members of kernel types that these programs read. When the programs are loaded, the loader fills in the offsets. */
#define KERNEL_TYPE __attribute__((preserve_access_index))
struct ns_common { unsigned int inum; } KERNEL_TYPE;
struct pid_namespace { struct ns_common ns; } KERNEL_TYPE;
struct upid { int nr; struct pid_namespace *ns; } KERNEL_TYPE;
struct pid { unsigned int level; struct upid numbers[1]; } KERNEL_TYPE;
struct mm_struct;
struct files_struct;
struct task_struct {
    struct task_struct *group_leader;
    struct pid *thread_pid;
    struct mm_struct *mm;
    struct files_struct *files;
} KERNEL_TYPE;
struct super_block { __u32 s_dev; } KERNEL_TYPE;
struct inode { unsigned long i_ino; struct super_block *i_sb; } KERNEL_TYPE;
struct qstr { const unsigned char *name; } KERNEL_TYPE;
struct dentry { struct qstr d_name; } KERNEL_TYPE;
struct path { struct dentry *dentry; } KERNEL_TYPE;
struct file { struct inode *f_inode; struct path f_path; } KERNEL_TYPE;
struct fdtable { struct file **fd; } KERNEL_TYPE;
struct files_struct { struct fdtable *fdt; } KERNEL_TYPE;

/* Options that select which processes and stacks are watched. The options are set before the programs are loaded. */
volatile const __u32 ALL_PROCESSES = 0;
volatile const __u32 KERNEL_STACKS = 0;
volatile const __u32 OWN_PID = 0;
volatile const __u32 OWN_NAMESPACE = 0;

struct file_id { __u64 inode; __u32 device; __u32 unused; };

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 64 << 20);
} EVENTS SEC(".maps");

/* Ids of the watched processes, in the PID namespace of gpuflame-bpf. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 65536);
    __type(key, __u32);
    __type(value, __u8);
} FOLLOWED SEC(".maps");

/* Files that gpuflame-bpf has inspected and in which it has attached its probes. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 65536);
    __type(key, struct file_id);
    __type(value, __u8);
} KNOWN SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, DROPPED_KINDS);
    __type(key, __u32);
    __type(value, __u64);
} DROPPED SEC(".maps");

static __always_inline void drop(__u32 what)
{
    __u64 *count = bpf_map_lookup_elem(&DROPPED, &what);
    /* The addition is atomic, so that no count is lost if it is interrupted on this CPU. */
    if (count)
        __sync_fetch_and_add(count, 1);
}

/* Returns the id of `task` in our PID namespace, or 0. A process in a namespace below ours also has an id in ours. */
static __always_inline __u32 number(struct task_struct *task)
{
    struct pid *pid = BPF_CORE_READ(task, thread_pid);
    unsigned int level = BPF_CORE_READ(pid, level);
    void *numbers = (void *)pid + bpf_core_field_offset(struct pid, numbers);
    for (unsigned int at = 0; at < MOST_NAMESPACES; at++) {
        if (at > level)
            break;
        struct upid *here = numbers + at * bpf_core_type_size(struct upid);
        if (BPF_CORE_READ(here, ns, ns.inum) == OWN_NAMESPACE)
            return BPF_CORE_READ(here, nr);
    }
    return 0;
}

static __always_inline __u32 process(struct task_struct *task)
{
    return number(BPF_CORE_READ(task, group_leader));
}

static __always_inline int is_followed(__u32 pid)
{
    if (pid == OWN_PID)
        return 0;
    return ALL_PROCESSES || bpf_map_lookup_elem(&FOLLOWED, &pid);
}

static __always_inline void begin(struct head *head, __u32 kind, struct task_struct *task, __u32 pid)
{
    head->kind = kind;
    head->pid = pid;
    head->tid = number(task);
    head->cpu = bpf_get_smp_processor_id();
    head->time = bpf_ktime_get_ns();
    head->mm = (__u64)BPF_CORE_READ(task, mm);
    bpf_get_current_comm(head->comm, sizeof(head->comm));
}

static __always_inline void fill(struct hit *hit, struct pt_regs *regs, struct task_struct *task, __u32 pid)
{
    begin(&hit->head, HIT, task, pid);
    hit->cookie = bpf_get_attach_cookie(regs);
    hit->stack_pointer = PT_REGS_SP(regs);
    hit->caller = 0;
    bpf_probe_read_user(&hit->caller, sizeof(hit->caller), (void *)PT_REGS_SP(regs));
    hit->kernel_bytes = 0;
    hit->user_bytes = bpf_get_stack(regs, hit->user, sizeof(hit->user), BPF_F_USER_STACK);
}

SEC("uprobe")
int launch(struct pt_regs *regs)
{
    struct task_struct *task = (struct task_struct *)bpf_get_current_task();
    __u32 pid = process(task);
    if (!is_followed(pid))
        return 0;
    if (KERNEL_STACKS) {
        struct hit_with_kernel *both = bpf_ringbuf_reserve(&EVENTS, sizeof(*both), 0);
        if (!both) {
            drop(DROPPED_HITS);
            return 0;
        }
        fill(&both->hit, regs, task, pid);
        both->hit.kernel_bytes = bpf_get_task_stack(bpf_get_current_task_btf(), both->kernel, sizeof(both->kernel), 0);
        bpf_ringbuf_submit(both, 0);
        return 0;
    }
    struct hit *hit = bpf_ringbuf_reserve(&EVENTS, sizeof(*hit), 0);
    if (!hit) {
        drop(DROPPED_HITS);
        return 0;
    }
    fill(hit, regs, task, pid);
    bpf_ringbuf_submit(hit, 0);
    return 0;
}

SEC("uprobe")
int marker(struct pt_regs *regs)
{
    struct task_struct *task = (struct task_struct *)bpf_get_current_task();
    __u32 pid = process(task);
    if (!is_followed(pid))
        return 0;
    struct marker *marker = bpf_ringbuf_reserve(&EVENTS, sizeof(*marker), 0);
    if (!marker) {
        drop(DROPPED_MARKERS);
        return 0;
    }
    begin(&marker->head, MARKER, task, pid);
    marker->correlation = (__u32)PT_REGS_PARM1(regs);
    marker->what = (__u32)PT_REGS_PARM2(regs);
    bpf_ringbuf_submit(marker, 0);
    return 0;
}

/* With --all, only files that may be CUDA libraries stop a process, because every user's processes are watched. */
static __always_inline int may_be_cuda(struct file *file)
{
    char name[8] = {};
    bpf_probe_read_kernel_str(name, sizeof(name), BPF_CORE_READ(file, f_path.dentry, d_name.name));
    return name[0] == 'l' && name[1] == 'i' && name[2] == 'b' && name[3] == 'c' && name[4] == 'u' &&
           name[5] == 'd' && name[6] == 'a';
}

static __always_inline void map(struct mapping *mapping, struct task_struct *task, __u32 pid)
{
    begin(&mapping->head, MAPPING, task, pid);
    mapping->start = mapping->end = mapping->offset = mapping->inode = 0;
    mapping->device = mapping->stopped = 0;
}

/* Runs after each system call, but handles only mmap, whose arguments are still in the registers. If the mapped file
 * was not inspected yet, the process is stopped before its next instruction. gpuflame-bpf inspects the file, attaches
 * probes, and resumes the process. (A probe in the kernel's mmap itself would also see mappings by exec, but some
 * kernels do not allow such probes. This program makes every system call of the machine about 20 ns slower.) */
SEC("tp_btf/sys_exit")
int BPF_PROG(called, struct pt_regs *regs, long address)
{
    if (regs->orig_rax != SYS_MMAP || !(regs->rdx & PROT_EXEC) || (regs->r10 & MAP_ANONYMOUS))
        return 0;
    /* -4095 to -1 are errors. */
    if ((unsigned long)address >= -4095UL)
        return 0;
    struct task_struct *task = (struct task_struct *)bpf_get_current_task();
    __u32 pid = process(task);
    if (!is_followed(pid))
        return 0;
    struct file **open_files = BPF_CORE_READ(task, files, fdt, fd);
    struct file *file = 0;
    bpf_probe_read_kernel(&file, sizeof(file), open_files + (__u32)regs->r8);
    if (!file)
        return 0;
    struct file_id id = {
        .inode = BPF_CORE_READ(file, f_inode, i_ino),
        .device = BPF_CORE_READ(file, f_inode, i_sb, s_dev),
    };
    struct mapping *mapping = bpf_ringbuf_reserve(&EVENTS, sizeof(*mapping), 0);
    if (!mapping) {
        drop(DROPPED_MAPPINGS);
        return 0;
    }
    map(mapping, task, pid);
    mapping->start = address;
    mapping->end = address + ((regs->rsi + PAGE_SIZE - 1) & ~(PAGE_SIZE - 1));
    mapping->offset = regs->r9;
    mapping->inode = id.inode;
    mapping->device = id.device;
    if (pid && !bpf_map_lookup_elem(&KNOWN, &id) && (!ALL_PROCESSES || may_be_cuda(file)))
        mapping->stopped = bpf_send_signal(SIGSTOP) == 0;
    bpf_ringbuf_submit(mapping, BPF_RB_FORCE_WAKEUP);
    return 0;
}

/* A process executes another program, whose file and loader are mapped. The process is stopped before its first
 * instruction, so that gpuflame-bpf can read the mappings from /proc. An empty mapping is the record of this event. */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(execs, struct task_struct *task)
{
    __u32 pid = process(task);
    if (!is_followed(pid))
        return 0;
    struct mapping *mapping = bpf_ringbuf_reserve(&EVENTS, sizeof(*mapping), 0);
    if (!mapping) {
        drop(DROPPED_MAPPINGS);
        return 0;
    }
    map(mapping, task, pid);
    if (pid && !ALL_PROCESSES)
        mapping->stopped = bpf_send_signal(SIGSTOP) == 0;
    bpf_ringbuf_submit(mapping, BPF_RB_FORCE_WAKEUP);
    return 0;
}

/* Runs before a new child process runs. A child of a watched process is watched, and has its parent's mappings. */
SEC("tp_btf/sched_process_fork")
int BPF_PROG(forks, struct task_struct *parent, struct task_struct *child)
{
    __u32 pid = process(parent);
    __u32 born = process(child);
    if (!is_followed(pid) || born == pid)
        return 0;
    __u8 yes = 1;
    bpf_map_update_elem(&FOLLOWED, &born, &yes, BPF_ANY);
    struct forked *forked = bpf_ringbuf_reserve(&EVENTS, sizeof(*forked), 0);
    if (!forked) {
        drop(DROPPED_MAPPINGS);
        return 0;
    }
    begin(&forked->head, FORK, parent, pid);
    forked->child = born;
    forked->child_mm = (__u64)BPF_CORE_READ(child, mm);
    forked->unused = 0;
    bpf_ringbuf_submit(forked, 0);
    return 0;
}
