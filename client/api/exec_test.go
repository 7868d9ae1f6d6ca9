package api_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
)

func TestResultsMarkBinaryOutput(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in   api.Result
		want string
	}{
		"text":   {api.Result{Stdout: "<é>\n", Stderr: "e"}, `"stdout":"<é>\n","stderr":"e"`},
		"binary": {api.Result{Stdout: "\x00\xff", Stderr: "e"}, `"stdout":"AP8=","stderr":"ZQ=="`},
		"stderr": {api.Result{Stdout: "", Stderr: "\xfe"}, `"stdout":"","stderr":"/g=="`},
	} {
		data, err := json.Marshal(c.in)
		if err != nil {
			t.Fatal(err)
		}
		plain := strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(string(data))
		if marked := strings.Contains(plain, `"encoding":"base64"`); !strings.Contains(plain, c.want) ||
			marked != (name != "text") {
			t.Errorf("%s: %s", name, plain)
		}
		var back api.Result
		if err := json.Unmarshal(data, &back); err != nil || !reflect.DeepEqual(back, c.in) {
			t.Errorf("%s: %+v, %v", name, back, err)
		}
	}
	if err := json.Unmarshal([]byte(`{"stdout":"%","encoding":"base64"}`), new(api.Result)); err == nil {
		t.Error("damaged base64 is accepted")
	}
}
