package netstack

import (
	"io"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gateway"
)

// holdTime limits how long a connection may leave its beginning incomplete if the beginning must be inspected.
const holdTime = 15 * time.Second

// decider returns a function that decides on names in a connection, under the policy at the time of the call.
func (g *Gateway) decider(c *conn) func(name string) gateway.Verdict {
	return func(name string) gateway.Verdict {
		p := g.Policy()
		v := p.Connect(g.target(c.addr, c.port))
		if v.Allowed {
			c.told(name)
			v = p.Name(v.Check, name, c.port)
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
	g     *Gateway
	c     *conn
	to    io.Writer
	names *gateway.Inspector
	late  *time.Timer // nil while no data is held back
}

// inspect returns the writer for the sandbox's data. It inspects the data as far as check requires.
func (g *Gateway) inspect(c *conn, check gateway.Check, to io.Writer) *inspected {
	return &inspected{g: g, c: c, to: to, names: gateway.NewInspector(check, g.decider(c))}
}

// Write returns a *gateway.Refusal if the policy forbids the connection because of its data.
func (w *inspected) Write(p []byte) (int, error) {
	out, err := w.names.Next(p)
	if err != nil {
		w.g.refused(w.c, err)
		w.stop()
		return 0, err
	}
	if w.names.Holding() && w.late == nil {
		w.late = time.AfterFunc(holdTime, func() {
			w.g.refused(w.c, errors.Newf(errors.Denied, "the connection does not name its host in time"))
			w.c.cut()
		})
	} else if !w.names.Holding() {
		w.stop()
	}
	if len(out) > 0 {
		if _, err := w.to.Write(out); err != nil {
			return 0, errors.Wrapf(err, "write to the host's connection")
		}
	}
	return len(p), nil
}

// Close ends the stream. Data that is still held back is incomplete, and is not forwarded.
func (w *inspected) Close() error {
	w.stop()
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
