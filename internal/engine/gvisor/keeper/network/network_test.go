package network

import (
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gateway"
)

func TestDenialsAreKeptAndTold(t *testing.T) {
	t.Parallel()
	var d denials
	found, more := d.After(0)
	if len(found) != 0 || more == nil {
		t.Fatalf("%+v", found)
	}
	d.add(gateway.Denial{Protocol: "dns", Domain: "x.org", Reason: "no rule allows it", Count: 2})
	<-more
	found, _ = d.After(0)
	if len(found) != 1 || found[0].Seq != 1 || found[0].Domain != "x.org" || found[0].Count != 2 {
		t.Errorf("%+v", found)
	}
	for range 2 * keptDenials {
		d.add(gateway.Denial{Protocol: "tcp"})
	}
	found, _ = d.After(1)
	if len(found) != keptDenials || found[0].Seq != keptDenials+2 || found[len(found)-1].Seq != 2*keptDenials+1 {
		t.Errorf("%d are kept, from %d", len(found), found[0].Seq)
	}
	if found, _ := d.After(found[len(found)-1].Seq); len(found) != 0 {
		t.Errorf("after the last: %+v", found)
	}
	if found, _ := d.After(1 << 40); len(found) != keptDenials { // of another sandbox's count
		t.Errorf("after what never was: %d", len(found))
	}
}

func TestNetworkWithoutOne(t *testing.T) {
	t.Parallel()
	var n Network
	for _, mode := range []engine.NetworkMode{"", engine.NetworkNone} {
		if err := n.Set(engine.Network{Mode: mode}, nil); err != nil || n.gateway != nil ||
			n.State().Mode != engine.NetworkNone {
			t.Errorf("mode %q: %v, %+v", mode, err, n.State())
		}
	}
	if err := n.Set(engine.Network{Mode: "odd"}, nil); !errors.Is(err, errors.Invalid) ||
		n.State().Mode != engine.NetworkNone {
		t.Errorf("an odd mode: %v, %+v", err, n.State())
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}
