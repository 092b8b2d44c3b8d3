"""Attacks that the kernel must refuse in this call's process: rights, processes, networks, mounts, signals."""

from tests.envs.sandbox.attacks.attack import raises, refused, system_calls

_NOT_PERMITTED = r"PermissionError|OSError: \[Errno 1\]"
_NOT_THERE = "FileNotFoundError"

REFUSALS = [
    # Rights.
    refused("becomes_root", "os.setuid(0)", "os.setgid(0)", "os.setgroups([0])", "os.setresuid(0, 0, 0)"),
    refused(
        "takes_capabilities",
        "libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6))",
        "libc.prctl(47, 2, 21, 0, 0)",
    ),
    refused(
        "raises_its_limits",
        *(f"resource.setrlimit(resource.RLIMIT_{name}, (-1, -1))" for name in ("CPU", "AS", "NPROC", "FSIZE")),
    ),
    refused("lifts_the_filter", "libc.prctl(22, 0, 0, 0, 0)", "libc.prctl(38, 0, 0, 0, 0)"),
    refused("locks_memory", "libc.mlock(ctypes.create_string_buffer(1 << 20), 1 << 20)", "libc.mlockall(3)"),
    # Namespaces.
    refused(
        "new_namespaces",
        *(
            f"libc.unshare({kind:#x})"
            for kind in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x8000000, 0x4000000, 0x2000000, 0x10020000)
        ),
    ),
    refused(
        "thread_in_new_namespaces",
        *(
            f"libc.syscall({{'x86_64': 56, 'aarch64': 220}}[machine], {kind | 0x10000 | 0x800 | 0x500:#x}, 0, 0, 0, 0)"
            for kind in (0x10000000, 0x20000, 0x40000000, 0x80)
        ),
    ),
    refused(
        "more_open_files",
        "libc.syscall({'x86_64': 56, 'aarch64': 220}[machine], 0x10900, 0, 0, 0, 0)",
        "libc.syscall(436, 60, 61, 2)",
        'socket.send_fds(socket.socketpair()[0], [b"x"], [0])',
    ),
    refused("enters_namespaces", "max(libc.setns(fd, 0) for fd in range(64))"),
    # Other processes.
    refused(
        "traces_its_parent",
        *(f"libc.ptrace({number}, os.getppid(), 0, 0)" for number in (16, 0x4206)),
        "libc.ptrace(0, 0, 0, 0)",
    ),
    refused(
        "reads_and_writes_its_parents_memory",
        *(f"libc.process_vm_{name}(os.getppid(), vector, 1, vector, 1, 0)" for name in ("readv", "writev")),
    ),
    raises("fork", "import os; os.fork()", _NOT_PERMITTED),
    raises(
        "another_program",
        """import os, sys; os.execv(sys.executable, ["python", "-c", 'print("BREACH")'])""",
        _NOT_PERMITTED,
        control=True,
    ),
    system_calls("raw_clone_and_vfork", (56, 57, 58, 435), (220, 435), "17, 0, 0, 0, 0"),
    raises("process_descriptors", "import os; os.pidfd_open(os.getppid())", r"PermissionError: \[Errno 1\]", True),
    system_calls("raw_signals", (129, 297, 424, 438), (138, 240, 424, 438), "os.getppid(), 9, buffer, 0"),
    refused(
        "pins_and_starves_the_supervisor",
        "os.sched_setaffinity(1, {min(os.sched_getaffinity(1))})",
        "os.setpriority(os.PRIO_PROCESS, 1, 19)",
        "os.nice(19)",
        "resource.prlimit(1, resource.RLIMIT_NOFILE, (4, 4))",
        "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    ),
    # Things that outlive a process or lie outside of its address space.
    raises("memory_file", 'import os; os.memfd_create("x")', _NOT_PERMITTED, control=True),
    refused(
        "system_v_objects", "libc.shmget(77, 1 << 30, 0o1666)", "libc.semget(77, 1, 0o1666)", "libc.msgget(77, 950)"
    ),
    refused("message_queue", 'ctypes.CDLL("librt.so.1").mq_open(b"/left", 0o102, 0o600, None)'),
    system_calls("keys_of_the_kernel", (248,), (217,), 'b"user", b"attack", b"x", 1, -3'),
    system_calls(
        "rare_system_calls",
        (
            *(101, 133, 135, 154, 155, 161, 163, 165, 166, 167, 169, 170, 172, 173, 175, 179, 212, 246, 248, 250, 272),
            *(298, 300, 303, 304, 308, 310, 311, 312, 313, 317, 319, 320, 321, 323, 425, 427, 428, 429, 430, 434, 438),
            *(440, 442, 443, 444, 446, 447, 448),
        ),
        (
            *(39, 40, 41, 51, 97, 104, 105, 106, 117, 142, 161, 162, 217, 219, 224, 241, 262, 264, 265, 268, 270, 271),
            *(272, 273, 277, 279, 280, 282, 425, 427, 428, 429, 430, 434, 438, 440, 442, 443, 444, 446, 447, 448),
        ),
        "0, 0, 0, 0, 0, 0",
    ),
    # Mounts and devices.
    refused(
        "mounts",
        'libc.mount(b"proc", b"/tmp", b"proc", 0, None)',
        'libc.mount(b"none", b"/", None, 32 | 4096, None)',
        'libc.mount(b"/", b"/tmp", None, 4096, None)',
        'libc.umount2(b"/tmp", 2)',
        'libc.umount2(b"/", 2)',
        'libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, b"size=10g")',
        'libc.mount(b"none", b"/tmp", None, 32, b"size=10g")',
        'os.chroot("/tmp")',
    ),
    refused("makes_a_device", 'os.mknod("disk", 0o60600, os.makedev(254, 0))'),
    refused(
        "types_into_the_terminal", *(f'fcntl.ioctl({fd}, 0x5412, b"x")' for fd in range(3)), 'os.open("/dev/tty", 2)'
    ),
    system_calls("file_handles", (303,), (264,), '-100, b"/usr", buffer, ctypes.byref(ctypes.c_int()), 0'),
    system_calls("opens_file_handles", (304,), (265,), 'os.open("/", os.O_RDONLY), buffer, os.O_RDONLY'),
    refused(
        "changes_modes_and_owners",
        'os.chmod("/tmp/..", 0o777)',
        "os.chmod(os.__file__, 0o777)",
        "os.utime(os.__file__)",
        'os.chown("/dev/null", 0, 0)',
        'os.rename("/dev/shm", "/dev/x")',
        'os.remove("/dev/null")',
    ),
    # Files that are not the call's.
    raises("file_of_the_owner", 'open("@secret_file@").read()', _NOT_THERE, control=True),
    raises("hard_link", 'import os; os.link("@secret_file@", "x")', _NOT_THERE),
    raises(
        "hard_link_to_the_library",
        'import os; os.link(os.__file__, "x"); open("x", "a")',
        r"OSError: \[Errno 18\]|PermissionError",
    ),
    refused(
        "folder_swapped_for_a_link",
        *(f'(os.rename("{path}", "{path}2"), os.symlink("@folder@", "{path}"))' for path in ("/tmp", "/dev/shm")),
    ),
    # The network.
    raises(
        "tcp",
        'import socket; socket.create_connection(("127.0.0.1", @port@), 2)',
        r"PermissionError: \[Errno 1\]",
        control=True,
    ),
    raises("names", 'import socket; socket.gethostbyname("example.org")', "gaierror|OSError"),
    raises(
        "message_from_a_socket_pair",
        "import socket; one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM);"
        ' one.sendto(b"x", chr(0) + "@abstract@-messages")',
        "ConnectionRefusedError|PermissionError|OSError",
        control=True,
    ),
    refused(
        "other_families",
        *(
            f"socket.{make}({family}, {kind}, 0)"
            for family in range(1, 46)
            for kind in (1, 2, 3, 5)
            for make in ("socket", "socketpair")
            if (make, family) != ("socketpair", 1)
        ),
    ),
    system_calls(
        "raw_socket_calls", (41, 42, 43, 49, 50, 288, 425), (198, 200, 201, 202, 203, 242, 425), "2, 1, 0, 0, 0, 0"
    ),
]
