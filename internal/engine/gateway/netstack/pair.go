package netstack

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// linkBuffer is the send buffer of each end of a link, in bytes as counted by the kernel.
const linkBuffer = 4 << 20

// Pair returns a new link: two ends of a socket that preserves frame boundaries, with buffers as large as the
// kernel allows. The caller closes both, the gateway's end after passing it to New. The socket is
// SOCK_SEQPACKET, whose queue is limited in bytes. The queue of a SOCK_DGRAM socket holds ten frames on most
// machines (net.unix.max_dgram_qlen).
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

// growBuffers requests large buffers, beyond the machine's limit if permitted. Smaller ones only reduce
// throughput.
func growBuffers(fd int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, linkBuffer) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, linkBuffer)
	}
}
