package bytestream

import "net"

// left does nothing: Windows cannot tell before the connection is read or written.
func left(*net.TCPConn, func()) {}
