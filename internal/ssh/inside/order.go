package inside

import (
	"encoding/binary"
	"io"
	"sync"
)

// inOrder is a connection of sftp on which each request is answered before the next one is read. The library has
// several workers, which would append the parts of a file in any order. Each request has one answer
// (https://datatracker.ietf.org/doc/html/draft-ietf-secsh-filexfer-02, section 3).
type inOrder struct {
	from     io.Reader
	to       io.Writer
	answered chan struct{} // has an element when the next request may be read
	close    func()        // closes done
	done     chan struct{}

	request, answer packet
}

// packet is the place in a stream of packets: a length of 4 bytes and as many bytes.
type packet struct {
	length []byte // the bytes of the length so far
	left   uint32 // bytes after the length
}

func newInOrder(from io.Reader, to io.Writer) *inOrder {
	o := &inOrder{from: from, to: to, answered: make(chan struct{}, 1), done: make(chan struct{})}
	o.close = sync.OnceFunc(func() { close(o.done) })
	o.answered <- struct{}{}
	return o
}

// rest returns how many bytes of a buffer belong to the packet.
func (p *packet) rest(size int) int {
	if len(p.length) < 4 {
		return min(size, 4-len(p.length))
	}
	return min(size, int(p.left))
}

// pass passes bytes of the packet, no more than rest, and reports whether it is complete.
func (p *packet) pass(data []byte) (complete bool) {
	if len(p.length) < 4 {
		if p.length = append(p.length, data...); len(p.length) < 4 {
			return false
		}
		p.left = binary.BigEndian.Uint32(p.length)
	} else {
		p.left -= uint32(len(data))
	}
	if p.left > 0 {
		return false
	}
	p.length = p.length[:0]
	return true
}

// Read implements io.Reader.
func (o *inOrder) Read(data []byte) (int, error) {
	if len(o.request.length) == 0 && len(data) > 0 {
		select {
		case <-o.answered:
		case <-o.done:
			return 0, io.EOF
		}
	}
	n, err := o.from.Read(data[:o.request.rest(len(data))])
	if n == 0 && len(o.request.length) == 0 { // the packet has not begun
		select {
		case o.answered <- struct{}{}:
		default:
		}
	} else {
		o.request.pass(data[:n])
	}
	return n, err
}

// Write implements io.Writer.
func (o *inOrder) Write(data []byte) (written int, err error) {
	for len(data) > 0 && err == nil {
		var n int
		n, err = o.to.Write(data[:o.answer.rest(len(data))])
		if o.answer.pass(data[:n]) {
			select {
			case o.answered <- struct{}{}:
			default:
			}
		}
		data, written = data[n:], written+n
	}
	return written, err
}

// Close implements io.Closer: the next Read returns the end.
func (o *inOrder) Close() error {
	o.close()
	return nil
}
