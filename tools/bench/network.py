# What `net` does at either end of a connection: network.py WHAT HOST PORT BYTES. It prints one figure.
import http.client, resource, socket, ssl, statistics, sys, time

what, address, size = sys.argv[1], (sys.argv[2], int(sys.argv[3])), int(sys.argv[4])
begin = time.perf_counter()


def request(line, s=None):
    s = s or socket.create_connection(address)
    s.sendall(line.encode() + b" HTTP/1.0\r\n\r\n")
    return s


if what == "download":
    with request("GET /") as s:
        b, n = bytearray(1 << 20), 0
        while k := s.recv_into(b):
            n += k
    assert n > size, n
    print(size / 1e6 / (time.perf_counter() - begin))
elif what == "upload":
    with socket.create_connection(address) as s:
        s.sendall(b"PUT / HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % size)
        b = bytes(1 << 20)
        for _ in range(size // len(b)):
            s.sendall(b)
        assert s.recv(12).endswith(b"200")
    print(size / 1e6 / (time.perf_counter() - begin))
elif what == "connect":
    took = []
    for _ in range(50):
        begin = time.perf_counter()
        with socket.create_connection(address):
            took.append(time.perf_counter() - begin)
    print(statistics.median(took) * 1e3)
elif what == "requests":
    connection = http.client.HTTPSConnection(*address, context=ssl._create_unverified_context())
    took = []
    for _ in range(size):
        begin = time.perf_counter()
        connection.request("GET", "/100")
        connection.getresponse().read()
        took.append(time.perf_counter() - begin)
    print(statistics.median(took) * 1e3)
elif what == "hold":
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held = [request("GET /") for _ in range(size)]  # and reads none of the answers
    for s in held:
        assert s.recv(12, socket.MSG_PEEK)
    print(len(held), flush=True)
    sys.stdin.read()
