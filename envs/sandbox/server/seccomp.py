"""The system calls that a call's code may use: a seccomp filter, built without libseccomp.

An allow-list. What is not on it fails with "Operation not permitted": sockets, new processes and programs, namespaces,
mounts, ptrace, memory files, System V IPC, keys, bpf, io_uring, the CPUs and priorities of processes (the supervisor's
among them, for the calls to come) and so on. New threads are allowed, and limits of the process itself. Pairs of
sockets are allowed, since asyncio needs one, but not what would multiply the kernel's memory for them: larger buffers,
sockets sent through sockets, a thread with its own table of open files. System calls newer than this table fail as
unknown to the kernel, and the C library falls back to older ones.

The numbers come from the kernel's tables for the two architectures; a test compares them with libseccomp's.
"""

import ctypes
import os
import struct

from .kernel import check, syscall

_X86_64 = """
    read:0 write:1 open:2 close:3 stat:4 fstat:5 lstat:6 poll:7 lseek:8 mmap:9 mprotect:10 munmap:11 brk:12
    rt_sigaction:13 rt_sigprocmask:14 rt_sigreturn:15 ioctl:16 pread64:17 pwrite64:18 readv:19 writev:20 access:21
    pipe:22 select:23 sched_yield:24 mremap:25 msync:26 mincore:27 madvise:28 dup:32 dup2:33 pause:34 nanosleep:35
    getitimer:36 alarm:37 setitimer:38 getpid:39 sendfile:40 sendto:44 recvfrom:45 shutdown:48
    getsockname:51 getpeername:52 getsockopt:55 exit:60 wait4:61 kill:62 uname:63 fcntl:72 flock:73
    fsync:74 fdatasync:75 truncate:76 ftruncate:77 getdents:78 getcwd:79 chdir:80 fchdir:81 rename:82 mkdir:83
    rmdir:84 creat:85 link:86 unlink:87 symlink:88 readlink:89 chmod:90 fchmod:91 chown:92 fchown:93 lchown:94
    umask:95 gettimeofday:96 getrlimit:97 getrusage:98 sysinfo:99 times:100 getuid:102 getgid:104 geteuid:107
    getegid:108 setpgid:109 getppid:110 getpgrp:111 setsid:112 getgroups:115 getresuid:118 getresgid:120 getpgid:121
    getsid:124 rt_sigpending:127 rt_sigtimedwait:128 rt_sigsuspend:130 sigaltstack:131 utime:132 statfs:137
    fstatfs:138 getpriority:140 sched_getparam:143 sched_getscheduler:145 sched_get_priority_max:146
    sched_get_priority_min:147 mlock:149 munlock:150 prctl:157 arch_prctl:158 setrlimit:160 gettid:186
    getxattr:191 lgetxattr:192 fgetxattr:193 listxattr:194 llistxattr:195 flistxattr:196 tkill:200 time:201 futex:202
    sched_getaffinity:204 epoll_create:213 getdents64:217 set_tid_address:218
    restart_syscall:219 fadvise64:221 clock_gettime:228 clock_getres:229 clock_nanosleep:230 exit_group:231
    epoll_wait:232 epoll_ctl:233 tgkill:234 utimes:235 get_mempolicy:239 waitid:247 openat:257 mkdirat:258
    fchownat:260 futimesat:261 newfstatat:262 unlinkat:263 renameat:264 linkat:265 symlinkat:266 readlinkat:267
    fchmodat:268 faccessat:269 pselect6:270 ppoll:271 set_robust_list:273 get_robust_list:274 sync_file_range:277
    utimensat:280 epoll_pwait:281 timerfd_create:283 eventfd:284 fallocate:285 timerfd_settime:286 timerfd_gettime:287
    eventfd2:290 epoll_create1:291 dup3:292 pipe2:293 preadv:295 pwritev:296 getcpu:309
    renameat2:316 getrandom:318 membarrier:324 copy_file_range:326 preadv2:327 pwritev2:328 statx:332 rseq:334
    openat2:437 faccessat2:439 epoll_pwait2:441 futex_waitv:449
"""
_AARCH64 = """
    getxattr:8 lgetxattr:9 fgetxattr:10 listxattr:11 llistxattr:12 flistxattr:13 getcwd:17 eventfd2:19
    epoll_create1:20 epoll_ctl:21 epoll_pwait:22 dup:23 dup3:24 fcntl:25 ioctl:29 flock:32 mkdirat:34 unlinkat:35
    symlinkat:36 linkat:37 renameat:38 statfs:43 fstatfs:44 truncate:45 ftruncate:46 fallocate:47 faccessat:48
    chdir:49 fchdir:50 fchmod:52 fchmodat:53 fchownat:54 fchown:55 openat:56 close:57 pipe2:59 getdents64:61 lseek:62
    read:63 write:64 readv:65 writev:66 pread64:67 pwrite64:68 preadv:69 pwritev:70 sendfile:71 pselect6:72 ppoll:73
    readlinkat:78 newfstatat:79 fstat:80 fsync:82 fdatasync:83 sync_file_range:84 timerfd_create:85
    timerfd_settime:86 timerfd_gettime:87 utimensat:88 exit:93 exit_group:94 waitid:95 set_tid_address:96 futex:98
    set_robust_list:99 get_robust_list:100 nanosleep:101 getitimer:102 setitimer:103 clock_gettime:113
    clock_getres:114 clock_nanosleep:115 sched_getscheduler:120 sched_getparam:121
    sched_getaffinity:123 sched_yield:124 sched_get_priority_max:125 sched_get_priority_min:126 restart_syscall:128
    kill:129 tkill:130 tgkill:131 sigaltstack:132 rt_sigsuspend:133 rt_sigaction:134 rt_sigprocmask:135
    rt_sigpending:136 rt_sigtimedwait:137 rt_sigreturn:139 getpriority:141 getresuid:148 getresgid:150
    times:153 setpgid:154 getpgid:155 getsid:156 setsid:157 getgroups:158 uname:160 getrlimit:163 setrlimit:164
    getrusage:165 umask:166 prctl:167 getcpu:168 gettimeofday:169 getpid:172 getppid:173 getuid:174 geteuid:175
    getgid:176 getegid:177 gettid:178 sysinfo:179 getsockname:204 getpeername:205 sendto:206 recvfrom:207
    getsockopt:209 shutdown:210 brk:214 munmap:215 mremap:216 mmap:222
    fadvise64:223 mprotect:226 msync:227 mlock:228 munlock:229 mincore:232 madvise:233 get_mempolicy:236 wait4:260
    renameat2:276 getrandom:278 membarrier:283 copy_file_range:285 preadv2:286 pwritev2:287
    statx:291 rseq:293 openat2:437 faccessat2:439 epoll_pwait2:441 futex_waitv:449
"""


def _numbers(table):
    return {name: int(number) for name, number in (entry.split(":") for entry in table.split())}


#: Machine -> (the kernel's name of it, numbers of `seccomp`, `clone`, `socketpair` and `prlimit64`, name -> number of
#: the others).
TABLES = {
    "x86_64": (0xC000003E, 317, 56, 53, 302, _numbers(_X86_64)),
    "aarch64": (0xC00000B7, 277, 220, 199, 261, _numbers(_AARCH64)),
}
_CLONE3 = 435
#: The first system call that the tables do not know.
_FIRST_UNKNOWN = 451

_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06  # BPF, see linux/bpf_common.h
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _KILL, _REFUSE, _UNKNOWN = 0x7FFF0000, 0x80000000, 0x00050000 | 1, 0x00050000 | 38  # EPERM, ENOSYS
#: CLONE_THREAD and CLONE_FILES.
_CLONE_THREAD = 0x10400
#: These and all flags that make a namespace.
_CLONE_MASK = _CLONE_THREAD | 0x7E020080
_AF_UNIX = 1
#: The process id by which a process means itself.
_ITSELF = 0
_WHOLE = 0xFFFFFFFF
_SET_MODE_FILTER = 1


def program(machine=None):
    """The filter for `machine` (default: this one) as the kernel reads it: 8 bytes an instruction.

    Raises:
        OSError: there is no table for this machine.
    """
    machine = machine or os.uname().machine
    if machine not in TABLES:
        raise OSError(f"there is no list of system calls for {machine} (only for {', '.join(TABLES)})")
    architecture, _, clone, socketpair, prlimit64, numbers = TABLES[machine]
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    for number in sorted(numbers.values()):
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    code += [
        (_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _UNKNOWN),
        (_AT_LEAST, 0, 1, _FIRST_UNKNOWN),
        (_RETURN, 0, 0, _UNKNOWN),
    ]
    code += _if_argument(clone, _CLONE_MASK, _CLONE_THREAD) + _if_argument(socketpair, _WHOLE, _AF_UNIX)
    code += _if_argument(prlimit64, _WHOLE, _ITSELF)
    code.append((_RETURN, 0, 0, _REFUSE))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def _if_argument(number, mask, value):
    """Allows system call `number` if its first argument, masked, is `value`."""
    return [
        (_EQUAL, 0, 5, number),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_AND, 0, 0, mask),
        (_EQUAL, 0, 1, value),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]


def install(filter_program):
    """Filters this process's system calls from now on. Needs PR_SET_NO_NEW_PRIVS."""
    buffer = ctypes.create_string_buffer(filter_program, len(filter_program))
    # struct sock_fprog: the number of instructions, and where they are.
    header = struct.pack("HxxxxxxQ", len(filter_program) // 8, ctypes.addressof(buffer))
    address = ctypes.create_string_buffer(header, len(header))
    number = TABLES[os.uname().machine][1]
    check(syscall(number, _SET_MODE_FILTER, 0, ctypes.addressof(address)), "seccomp")
