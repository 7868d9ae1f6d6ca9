package model

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// metered reads an answer through a meter.
func metered(t testing.TB, kind, text string) (got string, used Usage, told bool) {
	resp := &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {kind}},
		Body:    io.NopCloser(strings.NewReader(text)),
		Request: httptest.NewRequest("POST", "/v1/messages", nil)}
	m := newMeter(resp, route{decode: decodeMessages}, func(u Usage) { used, told = u, true })
	if m == nil {
		return "", Usage{}, false
	}
	all, err := io.ReadAll(m)
	if err != nil || m.Close() != nil || m.Close() != nil {
		t.Fatal(err)
	}
	return string(all), used, told
}

func TestMeter(t *testing.T) {
	t.Parallel()
	const start = `data: {"type":"message_start","message":{"model":"m","usage":{"input_tokens":5,` +
		`"cache_read_input_tokens":7,"output_tokens":1}}}` + "\n\n"
	const delta = `data: {"type":"message_delta","usage":{"output_tokens":9,"cache_creation_input_tokens":3}}` + "\n\n"
	want := Usage{"m", 5, 9, 7, 3}
	for _, text := range []string{
		start + delta,
		start + "data: " + strings.Repeat("x", maxStreamLine+10) + `"usage"` + "\n" + delta,
		start + `data: {"usage":nonsense}` + "\n" + `data: {"usage":{"output_tokens":-4}}` + "\n" + delta,
		strings.ReplaceAll(start+delta, "\n", "\r\n"),
	} {
		if got, used, told := metered(t, "text/event-stream; charset=utf-8", text); got != text ||
			used != want || !told {
			t.Errorf("%+v, %t", used, told)
		}
	}
	if _, used, _ := metered(t, "application/json",
		`{"model":"m","usage":{"input_tokens":1,"output_tokens":2}}`); used != (Usage{Model: "m", InputTokens: 1,
		OutputTokens: 2}) {
		t.Errorf("a whole answer: %+v", used)
	}
	if _, _, told := metered(t, "text/html", `{"usage":{"input_tokens":1}}`); told {
		t.Error("a page was counted")
	}
}

func FuzzMeter(f *testing.F) {
	f.Add("data: {\"message\":{\"usage\":{\"input_tokens\":1}}}\n\ndata: {\"usage\":{}}")
	f.Add("event: x\r\ndata:\n:\n\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, kind := range []string{"text/event-stream", "application/json"} {
			if got, _, told := metered(t, kind, text); got != text || !told {
				t.Errorf("%q became %q", text, got)
			}
		}
	})
}
