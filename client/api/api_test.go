package api_test

import (
	"encoding/json"
	"net/url"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
)

func TestPath(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		route  string
		values []string
		want   string
	}{
		{api.Sandboxes, nil, "/v1/sandboxes"},
		{api.SandboxExec, []string{"sbx_1"}, "/v1/sandboxes/sbx_1/exec"},
		{api.VolumeNamed, []string{"a/b c"}, "/v1/volumes/a%2Fb%20c"},
		{api.VolumeNamed, []string{".."}, "/v1/volumes/%2E%2E"},
		{api.VolumeNamed, []string{"."}, "/v1/volumes/%2E"},
		{api.VolumeNamed, []string{"..a"}, "/v1/volumes/..a"},
		{api.VolumeNamed, []string{"{id}"}, "/v1/volumes/%7Bid%7D"},
	} {
		got := api.Path(c.route, c.values...)
		if got != c.want {
			t.Errorf("%s with %q is %s, want %s", c.route, c.values, got, c.want)
		}
		if _, err := url.Parse("http://harvest" + got); err != nil {
			t.Error(err)
		}
	}
}

// The fields that programs rely on.
// mission: A1
func TestResultShape(t *testing.T) {
	t.Parallel()
	got, err := json.Marshal(api.Result{ReturnCode: 0, Stdout: "42\n", Duration: 0.031, SandboxID: "sbx_1"})
	want := `{"returncode":0,"stdout":"42\n","stderr":"","duration_secs":0.031,"sandbox_id":"sbx_1","timed_out":false}`
	if err != nil || string(got) != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
}
