package session_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/uploads"
)

// TestWorkAfterTheSandboxEnded checks that the work of a session can be taken after its sandbox ended and after the
// session ended, and that the end of a session refuses to lose it.
// mission: E4, E8
func TestWorkAfterTheSandboxEnded(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	s := h.create(t, session.Request{Bundle: repository(t), Prompt: "/run echo b >b.txt"})
	h.watch(s.ID).status(t, records.Done)
	first := mustGet(t, h, s.ID).SandboxID
	if err := h.fleet.Destroy(t.Context(), account, first); err != nil {
		t.Fatal(err)
	}
	err := h.EndKeeping(t.Context(), account, s.ID)
	if errors.KindOf(err) != errors.Conflict || !strings.Contains(errors.Message(err), "1 file changed, not taken") ||
		!strings.Contains(errors.RemedyOf(err), "harvest checkout "+s.ID) {
		t.Errorf("%v; %s", err, errors.RemedyOf(err))
	}
	second := mustGet(t, h, s.ID).SandboxID
	if second == first {
		t.Error("no sandbox has the files")
	}
	patch, err := h.Diff(t.Context(), account, s.ID, "")
	if err != nil || !bytes.Contains(patch, []byte("+++ b/b.txt")) {
		t.Errorf("%s, %v", patch, err)
	}
	if err := h.fleet.Destroy(t.Context(), account, second); err != nil {
		t.Fatal(err)
	}
	bundle, changes, err := h.Bundle(t.Context(), account, s.ID, "")
	if err != nil || !bytes.HasPrefix(bundle, []byte("# v2 git bundle")) || changes != session.Digest(patch) {
		t.Errorf("%.20q, %s, %v", bundle, changes, err)
	}
	if err := h.Taken(t.Context(), account, s.ID, "", changes); err != nil {
		t.Fatal(err)
	}
	w := h.watch(s.ID)
	h.send(t, s.ID, "/run echo c >b.txt")
	w.until(t, "message.queued")
	for w.until(t, "done").data.Message.Prompt != "/run echo c >b.txt" {
	}
	if err := h.EndKeeping(t.Context(), account, s.ID); errors.KindOf(err) != errors.Conflict {
		t.Errorf("the changes of a later turn: %v", err)
	}
	if patch, err = h.Diff(t.Context(), account, s.ID, ""); err != nil {
		t.Fatal(err)
	}
	if err := h.Taken(t.Context(), account, s.ID, "", session.Digest(patch)); err != nil {
		t.Fatal(err)
	}
	if err := h.EndKeeping(t.Context(), account, s.ID); err != nil {
		t.Errorf("all is taken: %v", err)
	}
	again, err := h.Diff(t.Context(), account, s.ID, "")
	if err != nil || !bytes.Equal(again, patch) {
		t.Errorf("after the end: %s, %v", again, err)
	}
	boxes, err := h.fleet.List(t.Context(), account, record.Filter{})
	if err != nil || len(boxes) != 0 {
		t.Errorf("%d sandboxes are left, %v", len(boxes), err)
	}
}

// TestSentCommitsOutliveTheServer checks that a session whose repository was not cloned when the server ended is cloned
// from the commits that the client sent, and that no file is left.
// mission: E3, E4
func TestSentCommitsOutliveTheServer(t *testing.T) {
	t.Parallel()
	h := newHouse(t, session.Options{})
	h.opts.Uploads = openUploads(t)
	h.close(t)
	h.open(t)
	s := h.create(t, session.Request{Bundle: repository(t), Prompt: "/run ls"})
	h.close(t) // the sandbox is not ready
	if status := storedStatus(t, h, s.ID); status != records.Creating {
		t.Skipf("the session is %s already", status)
	}
	h.open(t)
	w := h.watch(s.ID)
	w.until(t, "done")
	if !strings.Contains(w.String(), "README.md") {
		t.Errorf("%s", w)
	}
	testenv.Eventually(t, "the files are released", func() bool {
		_, err := os.Stat(filepath.Dir(h.opts.Uploads.Path(s.ID, "bundle")))
		return os.IsNotExist(err)
	})
}

func openUploads(t *testing.T) *uploads.Store {
	t.Helper()
	store, err := uploads.Open(t.TempDir(), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

// storedStatus returns the status of a session without a server.
func storedStatus(t *testing.T, h *house, id string) records.Status {
	t.Helper()
	s, err := h.sessions.Session(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return s.Status
}
