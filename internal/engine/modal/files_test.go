package modal

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	sdk "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/modal/call"
	"github.com/RelevanceAI/harvest/internal/engine/modal/inside"
	"github.com/RelevanceAI/harvest/internal/engine/modal/records"
	"github.com/RelevanceAI/harvest/internal/image"
)

// TestFilesOfNoVolume checks that each operation on a missing volume reports that it is missing.
func TestFilesOfNoVolume(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	m := &modalVolume{noted(t, "a"), "none"}
	_, list := m.ReadDir(ctx, "")
	_, out := m.CopyOut(ctx, "x")
	for what, err := range map[string]error{
		"Commit": m.Commit(ctx), "Reload": m.Reload(ctx), "CopyIn": m.CopyIn(ctx, "", strings.NewReader("")),
		"Remove": m.Remove(ctx, "x"), "ReadDir": list, "CopyOut": out,
	} {
		if errors.KindOf(err) != errors.NotFound {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestSizesOfVolumes checks that the size of a volume is the last answer of the program inside.
func TestSizesOfVolumes(t *testing.T) {
	t.Parallel()
	m := &modalVolume{noted(t, "a"), "a"}
	answer, err := json.Marshal(inside.VolumeSize{Size: 7, Files: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.sized(answer, nil); err != nil {
		t.Fatal(err)
	}
	if err := m.sized([]byte("{"), nil); err == nil {
		t.Error("half an answer is one")
	}
	if err := m.sized(nil, errors.Newf(errors.Gone, "x")); errors.KindOf(err) != errors.Gone {
		t.Errorf("no answer: %v", err)
	}
	if n, err := m.v.records.Find("a"); err != nil || n.Size != 7 || n.Files != 1 {
		t.Errorf("the volume has %+v, %v", n, err)
	}
}

// TestAttendantsThatFail checks that attendants handle failures: they cannot be started, their caller has given up, or
// the engine is closed.
func TestAttendantsThatFail(t *testing.T) {
	t.Parallel()
	e := ended(t, nil).e
	a := &attendants{e: e, idle: time.Hour, swept: make(chan struct{}), all: map[string]*attendant{}}
	e.attendants = a
	n := records.Volume{Name: "a", Modal: "at-modal"}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := a.attend(ctx, n); errors.KindOf(err) != errors.Canceled {
		t.Errorf("given up: %v", err)
	}
	if sb, _ := a.there(n.Modal); sb != nil {
		t.Error("an attendant that is being started is there")
	}
	e.cancel()
	if _, _, err := a.attend(t.Context(), n); errors.KindOf(err) != errors.Canceled {
		t.Errorf("none can be started: %v", err)
	}
	if len(a.all) != 0 {
		t.Errorf("there are left %v", a.all)
	}
	at, fresh, alone := a.take(n)
	<-at.ready
	if sb, _ := a.there(n.Modal); !fresh || !alone || sb != nil {
		t.Errorf("one that could not be started: %v %v %v", fresh, alone, sb)
	}
	a.end(t.Context(), n.Modal)
	a.end(t.Context(), n.Modal)
	a.release(n.Modal, at)
	a.take(n)
	a.close()
	if _, _, err := a.attend(t.Context(), n); errors.KindOf(err) != errors.Conflict || len(a.all) != 0 {
		t.Errorf("after the end: %v, %v", err, a.all)
	}
}

// keeper is a control plane that refuses to delete images, with a reason.
type keeper struct {
	silent
	err error
}

func (k keeper) ImageDelete(context.Context, *pb.ImageDeleteRequest, ...grpc.CallOption) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, k.err
}

// mission: A10
func TestSnapshotsThatCannotBe(t *testing.T) {
	t.Parallel()
	s := ended(t, nil)
	for what, c := range map[string]struct {
		opts image.SnapshotOptions
		kind errors.Kind
	}{
		"a directory":        {image.SnapshotOptions{Path: "/x"}, errors.Unsupported},
		"Harvest's own name": {image.SnapshotOptions{Names: []string{ownImage}}, errors.Invalid},
	} {
		if _, err := s.SnapshotImage(t.Context(), image.Image{}, c.opts); errors.KindOf(err) != c.kind ||
			errors.RemedyOf(err) == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	for code, want := range map[codes.Code]errors.Kind{codes.OK: "", codes.NotFound: "",
		codes.FailedPrecondition: errors.Conflict, codes.PermissionDenied: errors.Denied} {
		client, err := sdk.NewClientWithOptions(&sdk.ClientParams{TokenID: "ak-x", TokenSecret: "as-x",
			ControlPlaneClient: keeper{err: status.Error(code, "said so")}})
		if err != nil {
			t.Fatal(err)
		}
		err = (&Engine{patience: call.Usual, client: client}).forget(t.Context(), "im-1")
		if (want == "") != (err == nil) || err != nil && errors.KindOf(err) != want || want == errors.Conflict &&
			!strings.Contains(errors.Message(err), "said so") {
			t.Errorf("%s: %v", code, err)
		}
		client.Close()
	}
}

func TestEndsOfSandboxes(t *testing.T) {
	t.Parallel()
	s := ended(t, nil)
	if due, end := s.Ends(); !due.IsZero() || !end.IsZero() {
		t.Errorf("an end that is not known is %v, %v", due, end)
	}
	s.e.opts.CarryAhead, s.end = time.Hour, time.Now().Add(24*time.Hour)
	if due, end := s.Ends(); !end.Equal(s.end) || end.Sub(due) != time.Hour {
		t.Errorf("it is to be carried at %v, and ends at %v", due, end)
	}
}
