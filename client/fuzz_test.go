package client

import (
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
)

func FuzzReadEvents(f *testing.F) {
	for _, seed := range []string{"event: a\ndata: b\n\n", "data: 1\ndata: 2\n\n", ":\n\nevent\n\n",
		"id: 1\r\ndata:x\n\n", "data", "id:0\n\n", "id:0\nevent:x\n\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		err := readEvents(strings.NewReader(text), func(name string, data []byte) error {
			if strings.ContainsRune(name, '\n') {
				t.Errorf("a name with a line break: %q", name)
			}
			if !strings.Contains(text, "data") {
				t.Errorf("an event without data: %q", data)
			}
			return nil
		})
		if err != nil && errors.KindOf(err) != errors.Unavailable {
			t.Errorf("%v", err)
		}
	})
}

func FuzzEnd(f *testing.F) {
	for _, seed := range []string{`{"exit":{"returncode":1}}`, `{"problem":{"code":"invalid"}}`, `{}`, `[`, `null`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if res, err := end(data); err != nil && res.ReturnCode != 0 {
			t.Errorf("an error and a result: %v, %+v", err, res)
		}
	})
}
