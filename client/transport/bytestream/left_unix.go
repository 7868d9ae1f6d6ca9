//go:build unix

package bytestream

import (
	"net"
	"syscall"
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
		pending, err := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_ERROR)
		hit = err != nil || pending != 0
		return hit
	})
	if hit {
		gone()
	}
}
