"""What the workspace says of sleep (macOS), through the Objective-C runtime; no other package is needed for it."""

import ctypes
from collections.abc import Callable


class WorkspaceNotices:
    """Calls `told` with True before sleep and False after it, for as long as the process lives."""

    _NAMES = ((b"NSWorkspaceWillSleepNotification", True), (b"NSWorkspaceDidWakeNotification", False))

    def __init__(self, told: Callable[[bool], None]) -> None:
        runtime = ctypes.CDLL("/usr/lib/libobjc.A.dylib")
        ctypes.CDLL("/System/Library/Frameworks/AppKit.framework/AppKit")
        for function in ("objc_getClass", "sel_registerName", "objc_allocateClassPair"):
            getattr(runtime, function).restype = ctypes.c_void_p
        pointer = ctypes.c_void_p
        send = ctypes.CFUNCTYPE(pointer, pointer, pointer)(("objc_msgSend", runtime))
        send_text = ctypes.CFUNCTYPE(pointer, pointer, pointer, ctypes.c_char_p)(("objc_msgSend", runtime))
        add = ctypes.CFUNCTYPE(None, pointer, pointer, pointer, pointer, pointer, pointer)(("objc_msgSend", runtime))
        method = ctypes.CFUNCTYPE(None, pointer, pointer, pointer)

        def selector(name: bytes) -> int:
            return int(runtime.sel_registerName(name))

        runtime.objc_allocateClassPair.argtypes = [pointer, ctypes.c_char_p, ctypes.c_size_t]
        runtime.objc_registerClassPair.argtypes = [pointer]
        runtime.class_addMethod.argtypes = [pointer, pointer, pointer, ctypes.c_char_p]
        made = runtime.objc_allocateClassPair(runtime.objc_getClass(b"NSObject"), b"HypnosSleepObserver", 0)
        self._kept = [
            method(lambda _self, _command, _notice, begins=begins: told(begins)) for _name, begins in self._NAMES
        ]
        """The runtime calls these for as long as the process lives."""
        for (name, _begins), callback in zip(self._NAMES, self._kept, strict=True):
            runtime.class_addMethod(made, selector(name + b":"), ctypes.cast(callback, pointer), b"v@:@")
        runtime.objc_registerClassPair(made)
        observer = send(send(made, selector(b"alloc")), selector(b"init"))
        workspace = send(runtime.objc_getClass(b"NSWorkspace"), selector(b"sharedWorkspace"))
        centre = send(workspace, selector(b"notificationCenter"))
        for name, _begins in self._NAMES:
            text = send_text(runtime.objc_getClass(b"NSString"), selector(b"stringWithUTF8String:"), name)
            add(centre, selector(b"addObserver:selector:name:object:"), observer, selector(name + b":"), text, None)
