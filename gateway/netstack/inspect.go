package netstack

import (
	"io"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/gateway"
)

// holdTime is how long a connection may leave its beginning unfinished, where that has to be read.
const holdTime = 15 * time.Second

// decider returns how the policy that holds when it is asked decides on the names that a connection tells.
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

// refused tells that a connection was refused for what it said.
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

// inspected passes on what may go on of a TCP connection.
type inspected struct {
	g     *Gateway
	c     *conn
	to    io.Writer
	names *gateway.Inspector
	late  *time.Timer // nil while nothing is held back
}

// inspect returns what the sandbox's bytes are written to: to itself, or through an inspector if names must be seen first.
func (g *Gateway) inspect(c *conn, check gateway.Check, to io.Writer) *inspected {
	return &inspected{g: g, c: c, to: to, names: gateway.NewInspector(check, g.decider(c))}
}

// Write returns a *gateway.Refusal if the connection said what the policy forbids.
func (w *inspected) Write(p []byte) (int, error) {
	out, err := w.names.Next(p)
	if err != nil {
		w.g.refused(w.c, err)
		w.stop()
		return 0, err
	}
	if w.names.Holding() && w.late == nil {
		w.late = time.AfterFunc(holdTime, func() {
			w.g.refused(w.c, errors.Newf(errors.Denied, "the connection does not say in time whom it means"))
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

// Close ends the stream. What is still held back was never finished, and does not go on.
func (w *inspected) Close() error {
	w.stop()
	if w.names.Holding() {
		err := errors.Newf(errors.Denied, "the connection ends before it says whom it means")
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
