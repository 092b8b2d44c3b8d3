"""The program that runs pieces of Python, each in a process of its own with limits, fenced or not.

It needs Linux and the standard library only: inside the fence nothing else of this package is visible. Three kinds of
processes, each the child of the one before:

    main         imports and warms up what the calls need (`setup`), and forks a supervisor for each connection
    supervisor   one call: reads the request, enters namespaces of its own, keeps time and size of the output, replies
    program      the call's code

Only a call's own supervisor and program ever hold its data, so no later call can find it in the memory with which it
was forked. All processes of a call die with its supervisor, which is process 1 of the call's process namespace.
"""
