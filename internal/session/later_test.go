package session_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/devcontainer"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/preparation"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// described makes every image that of a dev container.
type described struct {
	preparation.Repos
	metadata string
}

func (d described) Image(context.Context, string, string, string) (records.RepoImage, bool) {
	return records.RepoImage{}, false
}

func (d described) Lookup(_ context.Context, _, ref string) (image.Image, error) {
	return image.Image{ID: ref, Config: image.Config{Labels: map[string]string{
		"harvest.devcontainer": `{"config": "devcontainer.json", "dir": "/workspace/project",
			"folder": "/workspace/project", "secrets": {"TOKEN": {}}}`,
		devcontainer.Label: d.metadata}}}, nil
}

// TestLaterCommands checks that an agent starts while commands run for which its session does not wait, and that their
// output, their failure and a restart of the server are events.
//
// mission: B4
func TestLaterCommands(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := newHouse(t, session.Options{Repos: described{metadata: `[{"userEnvProbe": "none",
		"waitFor": "updateContentCommand",
		"postCreateCommand": "echo one; while ! [ -e go ]; do sleep 0.1; done; echo two",
		"postStartCommand": "echo why; exit 3", "postAttachCommand": "echo never"}]`}})
	create := func(prompt string) *watcher {
		return h.watch(h.create(t, session.Request{Repo: "https://example.org/owner/project.git", Bundle: repository(t),
			Prompt: prompt}).ID)
	}
	w := create("/run touch go")
	if e := w.until(t, records.EventNotice); e.data.Reason != records.NoticeSecret {
		t.Errorf("the first notice: %+v", e.data)
	}
	failed := w.until(t, records.EventNotice)
	if failed.data.Reason != records.NoticeCommand || !strings.Contains(failed.data.Text,
		"postStartCommand of devcontainer.json failed with exit code 3: why") {
		t.Errorf("the failure: %+v", failed.data)
	}
	said, stages := map[string]string{}, []string{}
	for _, e := range w.all {
		switch e.typ {
		case records.EventOutput:
			said[e.data.ID] += e.data.Text
		case records.EventStage:
			stages = append(stages, e.data.Stage.Name)
		}
	}
	want := map[string]string{"postCreateCommand": "one\ntwo\n", "postStartCommand": "why\n"}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Error(diff)
	}
	if last := stages[len(stages)-1]; last != "postCreateCommand" {
		t.Errorf("the stages: %q", stages)
	}

	w = create("/say hello")
	w.until(t, records.EventOutput)
	h.close(t)
	h.open(t)
	for {
		if e := w.until(t, records.EventNotice); e.data.Reason == records.NoticeCommand {
			if !strings.Contains(e.data.Text, "(postCreateCommand, postStartCommand, postAttachCommand)") {
				t.Errorf("after a restart: %+v", e.data)
			}
			break
		}
	}
}
