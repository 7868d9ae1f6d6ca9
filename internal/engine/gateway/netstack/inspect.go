package netstack

import (
	"cmp"
	"io"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gateway"
)

// holdTime limits how long a connection may leave its beginning incomplete if the beginning must be inspected.
const holdTime = 15 * time.Second

// patience is the same if the beginning only may name an intercepted server. It is then forwarded unread, since
// programs of other protocols may wait for an answer to it.
const patience = 2 * time.Second

// decider returns a function that decides on names in a connection, under the policy at the time of the call.
func (g *Gateway) decider(c *conn) gateway.Decide {
	return func(name string, port uint16) gateway.Verdict {
		p := g.Policy()
		v := p.Connect(g.target(c.addr, c.port))
		if v.Allowed {
			c.told(name)
			v = p.Name(v.Check, name, c.port)
			v.Intercept = v.Allowed && p.Intercepts(name, cmp.Or(port, c.port))
		}
		return v
	}
}

// refused reports that a connection was refused for its content.
func (g *Gateway) refused(c *conn, err error) {
	d := gateway.Denial{Protocol: c.protocol, Address: c.addr.String(), Port: int(c.port), Reason: err.Error()}
	var r *gateway.Refusal
	if errors.As(err, &r) {
		d.Domain = r.Domain
	}
	if names := g.pins.Names(c.addr, time.Now()); d.Domain == "" && len(names) > 0 {
		d.Domain = names[0]
	}
	g.deny(d)
}

// inspected forwards the allowed data of a TCP connection.
type inspected struct {
	g       *Gateway
	c       *conn
	to      io.Writer
	lenient bool        // data that cannot be read in time is forwarded
	late    *time.Timer // nil while no data is held back; used by the goroutine that writes

	mu    sync.Mutex // held while data is forwarded
	names *gateway.Inspector
}

// inspect returns the writer for the sandbox's data. It inspects the data as far as check requires.
func (g *Gateway) inspect(c *conn, check gateway.Check, to io.Writer) *inspected {
	names := gateway.NewInspector(check, g.decider(c))
	names.Address = inside(g, c.addr).String()
	return &inspected{g: g, c: c, to: to, lenient: check == gateway.CheckIntercept, names: names}
}

// Write returns a *gateway.Refusal if the policy forbids the connection because of its data, and a *gateway.Handover if
// the connection is intercepted.
func (w *inspected) Write(p []byte) (int, error) {
	holding, err := w.write(p)
	if err != nil {
		w.stop()
		return 0, err
	}
	switch {
	case !holding:
		w.stop()
	case w.late == nil && w.lenient:
		w.late = time.AfterFunc(patience, w.release)
	case w.late == nil:
		w.late = time.AfterFunc(holdTime, func() {
			w.g.refused(w.c, errors.Newf(errors.Denied, "the connection does not name its host in time"))
			w.c.cut()
		})
	}
	return len(p), nil
}

// write forwards the allowed data, and reports whether some is held back.
func (w *inspected) write(p []byte) (holding bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out, err := w.names.Next(p)
	if err != nil {
		if over := (*gateway.Handover)(nil); !errors.As(err, &over) {
			w.g.refused(w.c, err)
		}
		return false, err
	}
	if len(out) > 0 {
		if _, err := w.to.Write(out); err != nil {
			return false, errors.Wrapf(err, "write to the host's connection")
		}
	}
	return w.names.Holding(), nil
}

// release forwards what is held back, and everything after it.
func (w *inspected) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if held := w.names.Release(); len(held) > 0 {
		if _, err := w.to.Write(held); err != nil {
			w.c.cut()
		}
	}
}

// Close ends the stream. Data that is still held back is incomplete, and is not forwarded unless it only may name an
// intercepted server.
func (w *inspected) Close() error {
	w.stop()
	if w.lenient {
		w.release()
		return nil
	}
	if w.names.Holding() {
		err := errors.Newf(errors.Denied, "the connection ends before it names its host")
		w.g.refused(w.c, err)
		return err
	}
	return nil
}

func (w *inspected) stop() {
	if w.late != nil {
		w.late.Stop()
		w.late = nil
	}
}
