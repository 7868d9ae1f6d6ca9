package spec

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
)

// wantError checks the kind of an error, and words of its message or remedy.
func wantError(t *testing.T, err error, kind errors.Kind, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%v, want the kind %s", err, kind)
		return
	}
	text := errors.Message(err) + " " + errors.RemedyOf(err)
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%q lacks %q", text, word)
		}
	}
}

func TestDecodeRequest(t *testing.T) {
	t.Parallel()
	got, err := Decode([]byte(`{"image":"base","name":"n","tags":{"a":"b"},"env":{"A":"b"},"workdir":"/w","user":"u",
		"volumes":[{"name":"v","path":"/v","read_only":true}],"cpu":1.5,"memory_bytes":1024,"disk_bytes":2048,
		"processes":3,"open_files":4,"volume_files":7,
		"timeout_seconds":86400,"idle_timeout_seconds":0.5,"network":{"mode":"none","allow":["x"],"deny":["y"]},
		"ports":[80],"hostname":"h","engine":"gvisor","cold":true,
		"secrets":null,"s3":null}`))
	if err != nil {
		t.Fatal(err)
	}
	want := Request{
		Image: "base", Name: "n", Tags: map[string]string{"a": "b"}, Env: map[string]string{"A": "b"},
		Workdir: "/w", User: "u",
		Volumes: []Mount{{Name: "v", Path: "/v", ReadOnly: true}}, CPU: 1.5, Memory: 1024, Disk: 2048,
		Processes: 3, Files: 4, VolumeFiles: 7,
		TimeoutSeconds: 86400, IdleTimeoutSeconds: 0.5, Network: Network{Mode: "none", Allow: []string{"x"},
			Deny: []string{"y"}}, Ports: []int{80}, Hostname: "h", Engine: "gvisor", Cold: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	for body, c := range map[string]struct {
		kind  errors.Kind
		words []string
	}{
		``:                 {errors.Invalid, []string{"not a JSON object"}},
		`[]`:               {errors.Invalid, []string{"not a JSON object"}},
		`{"image":"a"} {}`: {errors.Invalid, []string{"not a JSON object"}},
		`{"imaeg":"a","nmae":"b"}`: {errors.Invalid, []string{"2 things", `"imaeg"`, `"nmae"`,
			"use one of image, name"}},
		`{"Image":"a"}`:         {errors.Invalid, []string{`"Image"`}},
		`{"gpu":1}`:             {errors.Invalid, []string{"invalid gpu: a JSON number", "string"}},
		`{"gpu":"T4","odd":1}`:  {errors.Invalid, []string{`"odd"`}},
		`{"s3":{"bukcet":"b"}}`: {errors.Invalid, []string{`"bukcet"`, "mount_path"}},
		`{"cpu":"1"}`:           {errors.Invalid, []string{"invalid cpu: a JSON string", "number"}},
		`{"processes":1.5}`: {errors.Invalid, []string{"invalid processes: a JSON number 1.5",
			"whole number"}},
		`{"memory_bytes":1e999}`:     {errors.Invalid, []string{"memory_bytes"}},
		`{"volumes":[{"name":1}]}`:   {errors.Invalid, []string{"invalid volumes.name: a JSON number", "string"}},
		`{"volumes":[{"nmae":"v"}]}`: {errors.Invalid, []string{`"nmae"`, "read_only"}},
		`{"tags":["a"]}`:             {errors.Invalid, []string{"invalid tags: a JSON array", "object"}},
	} {
		_, err := Decode([]byte(body))
		wantError(t, err, c.kind, c.words...)
	}
	if req, err := Decode([]byte(`null`)); err != nil || !cmp.Equal(req, Request{}) {
		t.Errorf("null: %+v, %v", req, err)
	}
}
