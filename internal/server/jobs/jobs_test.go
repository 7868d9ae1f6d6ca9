package jobs_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/schedule"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/server/jobs"
	"github.com/RelevanceAI/harvest/test/stubs/sandboxtest"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

func open(t *testing.T) jobs.Jobs {
	t.Helper()
	return jobs.Jobs{Fleet: sandboxtest.Open(t, sandboxtest.New(t), fleet.Options{})}
}

func job(args string) schedule.Job {
	return schedule.Job{Account: "acme", Name: "nightly", Kind: api.JobRun, TimeoutSeconds: 600,
		Args: json.RawMessage(args)}
}

// sandboxes returns the sandboxes that have not ended.
func sandboxes(t *testing.T, j jobs.Jobs) []record.Sandbox {
	t.Helper()
	live, err := j.Fleet.List(t.Context(), "", record.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	return live
}

func TestRunCommand(t *testing.T) {
	t.Parallel()
	j := open(t)
	for _, test := range []struct {
		args       string
		code       int
		out, err   string
		kind       errors.Kind
		keeps, cut bool
	}{
		{args: `{"args":["sh","-c","echo $A; echo b >&2"],"env":{"A":"a"}}`, out: "a\n", err: "b\n"},
		{args: `{"args":["sh","-c","cat; exit 3"],"stdin":"in"}`, out: "in", code: 3, kind: errors.Unavailable},
		{args: `{"args":["sleep","1000"],"timeout_seconds":0.1}`, code: 124, kind: errors.Timeout},
		{args: `{"args":["sh","-c","yes | head -c 300000; echo end"]}`, cut: true},
		{args: `{"args":["true"],"keep":true}`, keeps: true},
	} {
		if err := j.CheckRun(job(test.args)); err != nil {
			t.Errorf("%s: %v", test.args, err)
		}
		got, err := j.Run(t.Context(), job(test.args))
		res, ok := got.(api.Result)
		if !ok || res.ReturnCode != test.code || errors.KindOf(err) != test.kind {
			t.Errorf("%s: %+v, %v", test.args, got, err)
			continue
		}
		text, err := json.Marshal(res)
		switch {
		case err != nil || len(text) > 60<<10:
			t.Errorf("%s: %d bytes, %v", test.args, len(text), err)
		case test.cut && !(res.Truncated && strings.HasPrefix(res.Stdout, "y\n") &&
			strings.HasSuffix(res.Stdout, "end\n")):
			t.Errorf("%s: %.100q", test.args, res.Stdout)
		case !test.cut && (res.Stdout != test.out || res.Stderr != test.err):
			t.Errorf("%s: %+v", test.args, res)
		}
		left := sandboxes(t, j)
		if (len(left) == 1) != test.keeps {
			t.Errorf("%s leaves %+v", test.args, left)
		}
		for _, sb := range left {
			if err := j.Fleet.Destroy(t.Context(), sb.Account, sb.ID); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	j := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := j.Run(ctx, job(`{"args":["sleep","1000"]}`))
		done <- err
	}()
	for len(sandboxes(t, j)) == 0 {
		select {
		case err := <-done:
			t.Fatal(err)
		default:
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, errors.Canceled) {
		t.Error(err)
	}
	if left := sandboxes(t, j); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}

func TestRemoveOrphans(t *testing.T) {
	t.Parallel()
	j := open(t)
	orphan := spec.Request{Tags: map[string]string{jobs.Tag: "nightly"}}
	if _, err := j.Fleet.Create(t.Context(), "acme", orphan); err != nil {
		t.Fatal(err)
	}
	kept, err := j.Fleet.Create(t.Context(), "acme", spec.Request{Tags: map[string]string{"team": "a"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.RemoveOrphans(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := sandboxes(t, j); len(left) != 1 || left[0].ID != kept.ID {
		t.Errorf("left: %+v", left)
	}
	if err := j.Fleet.Destroy(t.Context(), "acme", kept.ID); err != nil {
		t.Error(err)
	}
}

func TestBadArguments(t *testing.T) {
	t.Parallel()
	j := open(t)
	for args, want := range map[string]string{
		`{}`:                                     "nothing to run",
		`{"args":["true"],"detach":true}`:        "cannot be detached",
		`{"args":["true"],"sandbox":{"x":1}}`:    "unknown field",
		`{"args":["true"],"image":"base"}`:       "image",
		`{"args":["true"],"sandbox":{"cpu":-1}}`: "cpu",
		`{"code":" "}`:                           "no code",
		`{"args":["true"],"workdir":"x"}`:        "working directory",
		`[]`:                                     "",
	} {
		if err := j.CheckRun(job(args)); !errors.Is(err, errors.Invalid) ||
			!strings.Contains(errors.Message(err), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
	for args, want := range map[string]string{`{"session":{}}`: "no prompt", `{"prompt":"x"}`: "prompt"} {
		if err := j.CheckPrompt(job(args)); !errors.Is(err, errors.Invalid) ||
			!strings.Contains(errors.Message(err), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}
