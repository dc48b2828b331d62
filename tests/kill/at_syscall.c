/* Kills a process at its N-th system call: at_syscall PID N.
 *
 * Attaches to PID and to every thread that it starts, says "ready", counts entries into system calls from the first getsid() on,
 * and sends SIGKILL at the N-th (N = 0: only count). getsid() is the mark because nothing else in Python makes it. Prints the
 * count at the end. Exit status 77: this machine does not let one process trace another. Linux only. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>

struct entry { /* struct ptrace_syscall_info of linux/ptrace.h, as far as it is read here */
    uint8_t op;
    uint8_t pad[3];
    uint32_t arch;
    uint64_t instruction, stack, number, arguments[6];
};

#ifndef PTRACE_GET_SYSCALL_INFO
#define PTRACE_GET_SYSCALL_INFO 0x420e
#endif

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    pid_t leader = atoi(argv[1]);
    long limit = atol(argv[2]), count = 0;
    int counting = 0;
    long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL;
    if (ptrace(PTRACE_SEIZE, leader, 0, options) < 0 || ptrace(PTRACE_INTERRUPT, leader, 0, 0) < 0) {
        fprintf(stderr, "ptrace: errno %d\n", errno);
        return 77;
    }
    int ready = 0;
    for (;;) {
        int status;
        pid_t thread = waitpid(-1, &status, __WALL);
        if (thread < 0) break;
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            if (thread == leader) break;
            continue;
        }
        int number = WSTOPSIG(status), deliver = 0;
        if (number == (SIGTRAP | 0x80)) {
            struct entry info;
            if (ptrace((enum __ptrace_request)PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info) > 0 &&
                info.op == 1) {
                if (info.number == SYS_getsid) counting = 1;
                if (counting && ++count == limit) {
                    kill(leader, SIGKILL);
                    continue;
                }
            }
        } else if (status >> 16 == 0) {
            deliver = number;
        }
        ptrace(PTRACE_SYSCALL, thread, 0, deliver);
        if (!ready) {
            ready = 1;
            puts("ready");
            fflush(stdout);
        }
    }
    printf("%ld\n", count);
    return 0;
}
