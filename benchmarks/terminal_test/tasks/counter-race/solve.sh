cat >~/bump <<'S'
#!/usr/bin/env python3
import fcntl
import os
import sys

with open(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o666), "r+") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    text = file.read()
    try:
        number = int(text or "0") + 1
    except ValueError:
        sys.exit(f"{sys.argv[1]}: {text!r} is not a whole number")
    file.seek(0)
    file.truncate()
    file.write(f"{number}\n")
print(number)
S
chmod +x ~/bump
