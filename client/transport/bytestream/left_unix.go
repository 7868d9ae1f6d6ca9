//go:build unix

package bytestream

import (
	"net"

	"golang.org/x/sys/unix"
)

// left calls gone if the other side of c leaves after its end, and returns then or when c is closed. A reader or
// writer would notice, but there may be none: nothing is left to read, and this side may have nothing to write.
// Without a reset from the other side, the keep-alive messages of the kernel find that it has left, after a minute.
func left(c *net.TCPConn, gone func()) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	hit := false
	_ = raw.Read(func(fd uintptr) bool { // its error means that c is closed
		poll := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(poll, 0)
		hit = err == nil && n > 0 && poll[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
		return hit
	})
	if hit {
		gone()
	}
}
