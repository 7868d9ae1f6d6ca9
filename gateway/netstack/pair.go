package netstack

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/errors"
)

// linkBuffer is the send buffer of each side of a link in bytes, as the kernel counts them.
const linkBuffer = 4 << 20

// Pair returns a link of our own: two ends of a socket that keeps the bounds of frames, with buffers as large as the kernel gives. The
// caller closes both; the gateway's end by handing it to New. SOCK_SEQPACKET, since its queue is bounded in bytes, while that of a SOCK_DGRAM holds ten
// frames on most machines (net.unix.max_dgram_qlen).
func Pair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, errors.Wrapf(err, "make a link of two sockets")
	}
	for _, fd := range fds {
		growBuffers(fd)
	}
	return os.NewFile(uintptr(fds[0]), "link"), os.NewFile(uintptr(fds[1]), "link"), nil
}

// growBuffers asks for large buffers, beyond the machine's limit where that is allowed. Less means less throughput, no failure.
func growBuffers(fd int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, linkBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, linkBuffer)
	}
}
