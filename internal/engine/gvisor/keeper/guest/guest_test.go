package guest

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/runsc"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// TestSpecsAreEncodedWhole checks that the encoder covers every field that our specs use.
func TestSpecsAreEncodedWhole(t *testing.T) {
	t.Parallel()
	g := &Guest{Args: wire.BootArgs{Ref: "r", Dir: "/d", Init: "/i", Limits: engine.Limits{Files: 9, Disk: 1 << 20}}}
	spec := g.MainSpec([]string{"/init", "name"}, "/root.erofs",
		[]wire.Mount{{Source: "/s", Path: "/p", ReadOnly: true}})
	if err := setUsers(&wire.BootArgs{}, spec); err != nil {
		t.Fatal(err)
	}
	spec.Root.Readonly = true
	ours, err := runsc.EncodeSpec(spec)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	var got, want specs.Spec
	if err := errors.Join(json.Unmarshal(ours, &got), json.Unmarshal(theirs, &want)); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("encoded as %s\nwant %s", ours, theirs)
	}
}

func TestFilesOfNames(t *testing.T) {
	t.Parallel()
	steps := nameFiles("box", "0123")
	if len(steps) != 4 || steps[0].Rename != "/etc/hosts" || !strings.Contains(steps[0].Content, "127.0.1.1\tbox\n") ||
		steps[1].Rename != "/etc/resolv.conf" || !strings.HasPrefix(steps[1].Content, "nameserver 10.0.2.3\n") ||
		steps[2].Rename != "/etc/hostname" || steps[2].Content != "box\n" ||
		steps[3].Rename != "/etc/machine-id" || steps[3].Content != "0123\n" {
		t.Errorf("%+v", steps)
	}
	if s := nameFiles("localhost", "0123")[0].Content; strings.Count(s, "\n") != 2 {
		t.Errorf("hosts %q", s)
	}
}
