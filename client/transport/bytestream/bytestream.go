// Package bytestream carries a stream of bytes over a WebSocket in both directions. Each direction ends
// separately, as in a TCP connection. Binary messages are the bytes, and a text message is the end of its
// sender's direction.
package bytestream

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/RelevanceAI/harvest/client/errors"
)

const (
	chunk = 64 << 10 // the size of a sent message
	limit = 1 << 20  // the largest accepted message
)

// closeTime is how long Close waits for the other side to read everything.
const closeTime = 5 * time.Second

// Conn is a net.Conn over a WebSocket. An expired deadline ends it for good.
type Conn struct {
	ws     *websocket.Conn
	ctx    context.Context
	cancel context.CancelFunc

	reading sync.Mutex
	message io.Reader // the rest of a message; guarded by reading; nil between messages
	ended   bool      // the other side has ended its direction; guarded by reading

	gone    context.Context // ends when the other side leaves after its end
	leave   context.CancelFunc
	writing sync.Mutex
	said    bool // this side has ended its direction; guarded by writing

	mu    sync.Mutex
	timer *time.Timer // guarded by mu; nil without a deadline
}

// New makes a stream of ws and takes ownership of it. The end of ctx ends the stream.
func New(ctx context.Context, ws *websocket.Conn) *Conn {
	ws.SetReadLimit(limit)
	c := &Conn{ws: ws}
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.gone, c.leave = context.WithCancel(context.WithoutCancel(ctx))
	return c
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	for {
		if c.ended {
			return 0, io.EOF
		}
		if c.message == nil {
			kind, r, err := c.ws.Reader(c.ctx)
			if err != nil {
				return 0, explain(err)
			}
			if kind == websocket.MessageText {
				c.ended = true
				if _, err := io.Copy(io.Discard, r); err != nil {
					return 0, explain(err)
				}
				// Only a reader notices that the other side leaves, and Read no longer reads.
				closed := c.ws.CloseRead(c.ctx)
				context.AfterFunc(closed, c.leave)
				continue
			}
			c.message = r
		}
		n, err := c.message.Read(p)
		if err == io.EOF {
			c.message, err = nil, nil
		}
		if n > 0 || err != nil || len(p) == 0 {
			return n, explain(err)
		}
	}
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.said {
		return 0, net.ErrClosed
	}
	for sent := 0; sent < len(p); {
		n := min(len(p)-sent, chunk)
		if err := c.ws.Write(c.ctx, websocket.MessageBinary, p[sent:sent+n]); err != nil {
			return sent, explain(err)
		}
		sent += n
	}
	return len(p), nil
}

// CloseWrite ends this side's direction. It is idempotent.
func (c *Conn) CloseWrite() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.said {
		return nil
	}
	c.said = true
	return explain(c.ws.Write(c.ctx, websocket.MessageText, []byte("end")))
}

// Close ends the stream after delivering the written bytes.
func (c *Conn) Close() error {
	defer c.leave()
	defer c.cancel()
	_ = c.SetDeadline(time.Now().Add(closeTime))
	err := c.ws.Close(websocket.StatusNormalClosure, "")
	_ = c.SetDeadline(time.Time{})
	if websocket.CloseStatus(err) == -1 && !errors.Is(err, net.ErrClosed) && err != nil {
		return explain(c.ws.CloseNow())
	}
	return nil
}

func explain(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if websocket.CloseStatus(err) == websocket.StatusNormalClosure {
		return io.ErrUnexpectedEOF
	}
	return errors.Explainf(err, errors.Unavailable, "the connection broke off")
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return addr{} }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return addr{} }

type addr struct{}

func (addr) Network() string { return "websocket" }
func (addr) String() string  { return "websocket" }

// SetDeadline implements net.Conn; see Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	if !t.IsZero() {
		c.timer = time.AfterFunc(time.Until(t), c.cancel)
	}
	return nil
}

// SetReadDeadline is SetDeadline.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.SetDeadline(t) }

// SetWriteDeadline is SetDeadline.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.SetDeadline(t) }

// Join copies between a and b until both directions have ended, one breaks, or the other side of a Conn or a TCP
// connection has left. Then it closes both. a and b have CloseWrite, as TCP connections do.
func Join(a, b io.ReadWriteCloser) {
	var both sync.WaitGroup
	closeBoth := func() {
		_ = a.Close()
		_ = b.Close()
	}
	carry := func(to, from io.ReadWriteCloser) {
		_, err := io.Copy(to, from)
		half, ok := to.(interface{ CloseWrite() error })
		if !ok {
			err = errors.Errorf("connections of the type %T have no directions", to)
		}
		if err == nil {
			err = half.CloseWrite()
		}
		if err != nil { // the other direction is useless then
			closeBoth()
			return
		}
		if tcp, ok := from.(*net.TCPConn); ok {
			go left(tcp, closeBoth)
		}
	}
	for _, conn := range []io.ReadWriteCloser{a, b} {
		if c, ok := conn.(*Conn); ok {
			defer context.AfterFunc(c.gone, closeBoth)()
		}
	}
	both.Go(func() { carry(a, b) })
	both.Go(func() { carry(b, a) })
	both.Wait()
	closeBoth()
}
