"""The output of a command on a terminal, for test scripts: PYTHONPATH=$here python3."""
import fcntl
import os
import pty
import struct
import subprocess
import termios


def read_all(ours):
    """What comes until the other end of the terminal is closed."""
    text = b''
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            return text
        if not part:
            return text
        text += part


def run(arguments, columns=80, **streams):
    """What the command, which must succeed, writes to a terminal of so many columns. Its streams that are
    given as None are that terminal: run(command, stderr=None)."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack('HHHH', 40, columns, 0, 0))
    ends = {name: theirs if end is None else end for name, end in streams.items()}
    process = subprocess.Popen(arguments, **ends)
    os.close(theirs)
    text = read_all(ours)
    os.close(ours)
    assert process.wait() == 0, text
    return text.decode()
