import errno, os

told = False
while True:
    try:
        os.fork()
    except OSError as e:
        if not told:
            told = True
            print(errno.errorcode[e.errno], flush=True)
