package modal

import (
	"bufio"
	"strings"
	"testing"

	modal "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/client/errors"
)

// terminal is a real terminal: it has a size and a name, echoes its input, and its control characters send signals.
func (m *modalClient) terminal(t *testing.T) {
	sb := m.create(t, "alpine:3.21", nil)
	p, err := sb.Exec(t.Context(),
		[]string{"sh", "-c", "stty size; [ -t 0 ] && [ -t 1 ] && echo both; echo named >$(tty); exec cat"},
		&modal.SandboxExecParams{PTY: true})
	if err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(p.Stdout)
	line := func() string {
		t.Helper()
		text, err := out.ReadString('\n')
		if err != nil {
			t.Fatalf("%q, %v", text, err)
		}
		return strings.TrimRight(text, "\r\n")
	}
	if size, ends, name := line(), line(), line(); size != "24 80" || ends != "both" || name != "named" {
		t.Errorf("the terminal has the size %q, is input and output: %q, and opens by its name: %q", size, ends, name)
	}
	if _, err := p.Stdin.Write([]byte("typed\n")); err != nil {
		t.Fatal(err)
	}
	if echo, copied := line(), line(); echo != "typed" || copied != "typed" {
		t.Errorf("it shows %q and %q", echo, copied)
	}
	if _, err := p.Stdin.Write([]byte{'C' - '@'}); err != nil {
		t.Fatal(err)
	}
	if code, err := p.Wait(t.Context(), nil); err != nil || code != 130 {
		t.Errorf("interrupted, it ended with %d, %v", code, err)
	}
}

// snapshots of unchanged files are one image here, and two for their client: deleting one leaves the other.
func (m *modalClient) snapshots(t *testing.T) {
	sb := m.create(t, "alpine:3.21", nil)
	m.run(t, sb, "echo kept >/f")
	var taken []*modal.Image
	for range 2 {
		img, err := sb.SnapshotFilesystem(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, img)
	}
	if taken[0].ImageID == taken[1].ImageID {
		t.Fatalf("both are %s", taken[0].ImageID)
	}
	if err := m.sdk.Images.Delete(t.Context(), taken[0].ImageID, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := m.sdk.Images.FromID(t.Context(), taken[0].ImageID, nil); !errors.As(err, &modal.NotFoundError{}) {
		t.Errorf("what was deleted: %v", err)
	}
	fork, err := m.sdk.Sandboxes.Create(t.Context(), m.app, taken[1], nil)
	if err != nil {
		t.Fatal(err)
	}
	if out, code := m.run(t, fork, "cat /f"); code != 0 || out != "kept\n" {
		t.Errorf("a sandbox from the other has %q, %d", out, code)
	}
	if _, err := fork.Terminate(t.Context(), &modal.SandboxTerminateParams{Wait: true}); err != nil {
		t.Fatal(err)
	}
	if err := m.sdk.Images.Delete(t.Context(), taken[1].ImageID, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := m.sdk.Images.FromID(t.Context(), taken[1].ImageID, nil); !errors.As(err, &modal.NotFoundError{}) {
		t.Errorf("after both were deleted: %v", err)
	}
	if list, err := m.h.Run("image", "ls"); err != nil || strings.Contains(list, "modal/"+taken[1].ImageID) {
		t.Errorf("the image is there still: %v\n%s", err, list)
	}
}
