package main

import (
	"context"
	"io"
	"net"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// delayed is data in flight.
type delayed struct {
	data []byte
	due  time.Time
}

// inFlight is how many pieces of 64 KiB can be in flight in one direction of a connection: more than any client needs.
const inFlight = 1024

// delay forwards connections to the address listen to the address to. It delays each direction by half of the
// round trip time, and connecting by all of it. It returns when ctx ends.
func delay(ctx context.Context, listen, to string, roundTrip time.Duration) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return errors.Wrapf(err, "listen for the delay")
	}
	context.AfterFunc(ctx, func() { l.Close() })
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return errors.Wrapf(err, "accept for the delay")
		}
		go func() {
			defer c.Close()
			if pause(ctx, roundTrip) != nil {
				return
			}
			far, err := new(net.Dialer).DialContext(ctx, "tcp", to)
			if err != nil {
				return
			}
			defer far.Close()
			ended := make(chan struct{}, 2)
			go func() { lag(ctx, far, c, roundTrip/2); ended <- struct{}{} }()
			go func() { lag(ctx, c, far, roundTrip/2); ended <- struct{}{} }()
			<-ended
		}()
	}
}

// lag copies and delays each piece by the given time.
func lag(ctx context.Context, to io.Writer, from io.Reader, by time.Duration) {
	way := make(chan delayed, inFlight)
	go func() {
		defer close(way)
		for {
			buf := make([]byte, 64<<10)
			n, err := from.Read(buf)
			if n > 0 {
				way <- delayed{buf[:n:n], time.Now().Add(by)}
			}
			if err != nil {
				return
			}
		}
	}()
	for d := range way {
		if pause(ctx, time.Until(d.due)) != nil {
			break
		}
		if _, err := to.Write(d.data); err != nil {
			break
		}
	}
	for range way { // drain until the reader notices that the connection is closed
	}
}
