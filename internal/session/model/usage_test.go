package model

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
)

// metered reads an answer of Anthropic's API through a meter.
func metered(t testing.TB, kind, text string) (got string, used Usage, told bool) {
	got, used, _, told = through(t, route{asks: true, decode: decodeMessages}, false, kind, text)
	return got, used, told
}

// through reads an answer through a meter. told reports that there was one.
func through(t testing.TB, to route, drop bool, kind, text string) (got string, used Usage, result *Failure,
	told bool) {
	t.Helper()
	answers := &Answers{}
	answers.Note(&Failure{Message: "none"})
	r := httptest.NewRequest("POST", "/v1/messages", nil)
	resp := &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {kind}}, Request: r, ContentLength: -1,
		Body: io.NopCloser(strings.NewReader(text))}
	if len(text) < maxStreamLine {
		resp.Body = io.NopCloser(iotest.OneByteReader(strings.NewReader(text)))
	}
	sent := &counter{}
	sent.n.Store(400)
	m := newMeter(resp, &exchange{g: &Gateway{}, to: to, r: r, drop: drop, model: "m", sent: sent,
		grant: Grant{Answers: answers, Spend: func(u Usage) {
			used, told = u, true
			used.Cost, used.Unpriced = 0, false
		}}})
	if m == nil {
		return "", Usage{}, nil, false
	}
	all, err := io.ReadAll(m)
	if err != nil || m.Close() != nil || m.Close() != nil {
		t.Fatal(err)
	}
	return string(all), used, answers.Take(), told
}

func TestMeter(t *testing.T) {
	t.Parallel()
	const start = `data: {"type":"message_start","message":{"model":"m","usage":{"input_tokens":5,` +
		`"cache_read_input_tokens":7,"output_tokens":1}}}` + "\n\n"
	const delta = `data: {"type":"message_delta","usage":{"output_tokens":9,"cache_creation_input_tokens":3}}` + "\n\n"
	want := Usage{Model: "m", InputTokens: 5, OutputTokens: 9, CacheReadTokens: 7, CacheWriteTokens: 3}
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

// TestOpenAIUsage checks usage and result of answers in the formats of OpenAI's documentation, as streams and as a
// whole.
func TestOpenAIUsage(t *testing.T) {
	t.Parallel()
	const (
		stream    = "text/event-stream"
		whole     = "application/json"
		responses = `"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":60,"cache_write_tokens":30},` +
			`"output_tokens":20,"output_tokens_details":{"reasoning_tokens":15},"total_tokens":120}`
		chat = `"usage":{"prompt_tokens":100,"completion_tokens":20,"prompt_tokens_details":{"cached_tokens":60,` +
			`"cache_write_tokens":30},"completion_tokens_details":{"reasoning_tokens":15}}`
		delta = `data: {"type":"response.output_text.delta","delta":"x"}` + "\n\n"
		chunk = `data: {"choices":[{"delta":{"content":"x"},"finish_reason":null}]}` + "\n\n"
		ended = `data: {"choices":[{"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	)
	full := Usage{Model: "m", InputTokens: 10, OutputTokens: 20, CacheReadTokens: 60, CacheWriteTokens: 30}
	estimate := func(out int64) Usage { return Usage{Model: "m", InputTokens: 100, OutputTokens: out} }
	checkAnswers(t, []answered{
		{"response", stream, delta + "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":" +
			"{\"status\":\"completed\"," + responses + "}}\n\n", decodeResponse, full, ""},
		{"incomplete", stream, `data: {"type":"response.incomplete","response":{"status":"incomplete",` + responses +
			"}}\n", decodeResponse, full, ""},
		{"failed", stream, `data: {"type":"response.failed","response":{"status":"failed","error":{"code":` +
			`"insufficient_quota","message":"pay"},` + responses + "}}\n", decodeResponse, full,
			"no credit: pay (insufficient_quota)"},
		{"error event", stream, delta + `data: {"type":"error","code":"server_error","message":"sorry"}` + "\n",
			decodeResponse, estimate(2), "sorry (server_error)"},
		{"nested error event", stream, `data: {"type":"error","error":{"type":"x","message":"sorry"}}` + "\n",
			decodeResponse, estimate(1), "sorry (x)"},
		{"cut", stream, delta + delta + "data: {", decodeResponse, estimate(2), "broke off"},
		{"whole response", whole, `{"object":"response","status":"completed","error":null,` + responses + "}",
			decodeResponse, full, ""},
		{"whole failure", whole, `{"object":"response","status":"failed","error":{"code":"x","message":"y"},` +
			responses + "}", decodeResponse, full, "y (x)"},
		{"compaction", whole, `{"object":"response.compaction","output":[],` + responses + "}", decodeResponse, full,
			""},
		{"chat", stream, chunk + ended + `data: {"choices":[],` + chat + "}\n\ndata: [DONE]\n\n", decodeChat, full, ""},
		{"chat without usage", stream, chunk + ended + "data: [DONE]\r\n\r\n", decodeChat, estimate(3), ""},
		{"chat, usage with the last choice", stream, `data: {"choices":[{"finish_reason":"stop"}],` + chat + "}\n",
			decodeChat, full, ""},
		{"cut chat", stream, chunk, decodeChat, estimate(1), "broke off"},
		{"chat error", stream, chunk + `data: {"error":{"code":502,"message":"upstream"},"choices":[{"finish_reason":` +
			`"error"}]}` + "\n", decodeChat, estimate(2), "upstream"},
		{"whole chat", whole, `{"choices":[{"finish_reason":"tool_calls"}],` + chat + "}", decodeChat, full, ""},
		{"negative", whole, `{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":-5,` +
			`"completion_tokens":-1}}`, decodeChat, Usage{Model: "m"}, ""},
	})
}

// answered is an answer of an API, and what the gateway must learn from it.
type answered struct {
	name, kind, text string
	decode           decode
	want             Usage
	failure          string // "": success
}

func checkAnswers(t *testing.T, all []answered) {
	t.Helper()
	for _, c := range all {
		to := route{asks: true, told: true, decode: c.decode}
		got, used, failure, told := through(t, to, false, c.kind, c.text)
		if got != c.text || used != c.want || !told {
			t.Errorf("%s: %+v, want %+v; %q", c.name, used, c.want, got)
		}
		if c.failure == "" && failure != nil || c.failure != "" && !strings.Contains(fmt.Sprint(failure), c.failure) {
			t.Errorf("%s: the result is %v, want %q", c.name, failure, c.failure)
		}
	}
}

// TestGeminiUsage is TestOpenAIUsage for Gemini.
func TestGeminiUsage(t *testing.T) {
	t.Parallel()
	const (
		stream = "text/event-stream"
		whole  = "application/json"
		usage  = `"usageMetadata":{"promptTokenCount":100,"cachedContentTokenCount":60,"candidatesTokenCount":5,` +
			`"thoughtsTokenCount":15,"toolUsePromptTokenCount":2,"totalTokenCount":122}`
		chunk = `{"candidates":[{"content":{"parts":[{"text":"x"}]}}],"usageMetadata":{"promptTokenCount":100}}`
		ended = `{"candidates":[{"finishReason":"STOP"}],` + usage + "}"
	)
	full := Usage{Model: "m", InputTokens: 42, OutputTokens: 20, CacheReadTokens: 60}
	begun := Usage{Model: "m", InputTokens: 100}
	checkAnswers(t, []answered{
		{"stream", stream, "data: " + chunk + "\r\n\r\ndata: " + ended + "\r\n\r\n", decodeGemini, full, ""},
		{"cut", stream, "data: " + chunk + "\r\n\r\n", decodeGemini, begun, "broke off"},
		{"array", whole, "[" + chunk + "\r\n,\r\n" + ended + "]", decodeGemini, full, ""},
		{"whole", whole, ended, decodeGemini, full, ""},
		{"blocked", whole, `{"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":100}}`,
			decodeGemini, begun, "the prompt was blocked (SAFETY)"},
		{"error", stream, "data: " + chunk + "\n\ndata: " + `{"error":{"code":503,"message":"busy","status":` +
			`"UNAVAILABLE"}}` + "\n\n", decodeGemini, begun, "busy (UNAVAILABLE)"},
		{"without usage", stream, `data: {"candidates":[{"finishReason":"STOP"}]}` + "\n", decodeGemini,
			Usage{Model: "m", InputTokens: 100, OutputTokens: 1}, ""},
	})
}

// TestUnwantedUsageIsDropped checks that usage which the gateway has asked for does not reach the program, and that
// all other bytes do.
func TestUnwantedUsageIsDropped(t *testing.T) {
	t.Parallel()
	const chunk = `data: {"choices":[{"delta":{"content":"x"}}],"usage":null}` + "\n\n"
	const used = `data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2}}` + "\n\n"
	long := "data: " + strings.Repeat("x", maxStreamLine+10) + "\n\n"
	to := route{asks: true, told: true, decode: decodeChat}
	for text, want := range map[string]string{
		chunk + used + "data: [DONE]\n\n":                  chunk + "data: [DONE]\n\n",
		strings.ReplaceAll(chunk+used+chunk, "\n", "\r\n"): strings.ReplaceAll(chunk+chunk, "\n", "\r\n"),
		": comment\n\n" + used + "data: [DO":               ": comment\n\ndata: [DO",
		long + used + chunk:                                long + chunk,
		`data: {"choices":[],"filter":[]}` + "\n\n" + used: `data: {"choices":[],"filter":[]}` + "\n\n",
	} {
		got, u, _, _ := through(t, to, true, "text/event-stream", text)
		if got != want || u.InputTokens != 4 || u.OutputTokens != 2 {
			t.Errorf("%.200q became %.200q, %+v", text, got, u)
		}
	}
}

func FuzzMeter(f *testing.F) {
	f.Add("data: {\"message\":{\"usage\":{\"input_tokens\":1}}}\n\ndata: {\"usage\":{}}")
	f.Add("event: x\r\ndata:\n:\n\n")
	f.Add(`data: {"type":"response.completed","response":{"usage":{"input_tokens":-1}}}` + "\n")
	f.Add(`data: {"choices":[],"usage":{"prompt_tokens":1}}` + "\n\ndata: [DONE]\n\n")
	f.Add(`{"error":["x"],"usage":{"cost":-1}}`)
	f.Add(`[{"candidates":[{"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":-1,"thoughtsTokenCount":-9}}]`)
	decoders := []decode{decodeMessages, decodeResponse, decodeChat, decodeGemini}
	f.Fuzz(func(t *testing.T, text string) {
		for _, kind := range []string{"text/event-stream", "application/json"} {
			for i, d := range decoders {
				got, u, _, told := through(t, route{asks: true, told: i > 0, decode: d}, false, kind, text)
				if got != text || !told {
					t.Errorf("%q became %q", text, got)
				}
				if min(u.InputTokens, u.OutputTokens, u.CacheReadTokens, u.CacheWriteTokens) < 0 {
					t.Errorf("%q has the usage %+v", text, u)
				}
			}
		}
		chat := route{asks: true, told: true, decode: decodeChat}
		dropped, _, _, _ := through(t, chat, true, "text/event-stream", text)
		if !strings.Contains(text, "usage") && dropped != text {
			t.Errorf("%q became %q", text, dropped)
		}
	})
}
