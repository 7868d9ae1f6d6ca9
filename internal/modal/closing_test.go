package modal_test

import (
	"net"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	modalapi "github.com/RelevanceAI/harvest/internal/modal"
)

// TestServeDuringClose calls Serve while Close runs and afterwards. Serve must return and close its listener.
func TestServeDuringClose(t *testing.T) {
	t.Parallel()
	w := newBareWorld(t)
	testenv.CloseWhileUsed(t, func() (use, end func()) {
		server, err := modalapi.New(t.Context(), modalapi.Options{Fleet: w.fleet, Images: w.images,
			Volumes: w.engine.Volumes(), Keys: w.ring, Dir: w.dir, Records: w.db.Records()})
		if err != nil {
			t.Fatal(err)
		}
		serve := func() {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Error(err)
				return
			}
			if err := server.Serve(l); err != nil {
				t.Error(err)
			}
			if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
				t.Error("the listener is open after Serve", c.Close())
			}
		}
		return serve, func() {
			if err := server.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
