package model_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/cause"
	"github.com/RelevanceAI/harvest/internal/session/model"
)

// TestCauseOfAnswers checks that the cause of a failed request is that of the answer's status and type, and that the
// program in the sandbox still gets the whole answer. The bodies have the forms of the APIs' documentation.
//
// mission: E1
func TestCauseOfAnswers(t *testing.T) {
	t.Parallel()
	anthropic := func(kind, message string) string {
		return fmt.Sprintf(`{"type":"error","error":{"type":%q,"message":%q},"request_id":"req_1"}`, kind, message)
	}
	for _, c := range []struct {
		status int
		kind   string // header of Bedrock
		body   string
		want   cause.Cause
		text   string
	}{
		{401, "", anthropic("authentication_error", "OAuth token has expired. Please obtain a new token."), cause.Key,
			"the model's API refused the credential: OAuth token has expired. Please obtain a new token. " +
				"(authentication_error, status 401)"},
		{401, "", anthropic("authentication_error", "invalid x-api-key"), cause.Key, "refused the credential"},
		{403, "", anthropic("permission_error", "your plan lacks this model"), cause.Key, "refused the credential"},
		{400, "", anthropic("invalid_request_error", "Your credit balance is too low to access the Anthropic API."),
			cause.Credit, "has no credit"},
		{402, "", anthropic("billing_error", "payment is due"), cause.Credit, "has no credit"},
		{404, "", anthropic("not_found_error", "model: claude-x"), cause.Model, "does not know the model"},
		{400, "", anthropic("invalid_request_error", "prompt is too long: 250000 tokens > 200000 maximum"),
			cause.Length, "too long for the model"},
		{413, "", anthropic("request_too_large", "Request exceeds the maximum size"), cause.Length, "too long"},
		{400, "", anthropic("invalid_request_error", "messages: authentication of api key"), "",
			"the model's API failed"},
		{429, "", anthropic("rate_limit_error", "billing: too many requests with this api key"), "", "failed"},
		{529, "", anthropic("overloaded_error", "Overloaded"), "", "the model's API failed: Overloaded"},
		{500, "", "not JSON", "", "the model's API failed: Internal Server Error (status 500)"},
		{403, "ExpiredTokenException:http://x/", `{"message":"The security token is expired"}`, cause.Key,
			"(ExpiredTokenException, status 403)"},
		{400, "ValidationException", `{"message":"The provided model identifier is invalid."}`, cause.Model,
			"does not know the model"},
		{200, "", `{}`, "", ""},
	} {
		upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if c.kind != "" {
				w.Header().Set("X-Amzn-ErrorType", c.kind)
			}
			w.WriteHeader(c.status)
			fmt.Fprint(w, c.body+strings.Repeat(" ", 100<<10)+"end")
		}))
		w := newWorld(t)
		g := w.through(t, upstream.URL)
		answers := &model.Answers{}
		answers.Note(&model.Failure{Status: 500})
		w.grant.Answers = answers
		w.serve(t, g.Handler(w.grant))
		_, text := w.do(t, "POST", "/v1/messages", g.Token("ses_1"), streamed)
		if !strings.HasPrefix(text, c.body) || !strings.HasSuffix(text, "end") {
			t.Errorf("%d: the program got %d bytes, %.80q", c.status, len(text), text)
		}
		w.do(t, "POST", "/v1/messages/count_tokens", g.Token("ses_1"), whole) // says nothing about the turn
		switch f := answers.Take(); {
		case f == nil:
			if c.status != 200 {
				t.Errorf("%d %s: no failure", c.status, c.body)
			}
		case c.status == 200 || f.Cause() != c.want || !strings.Contains(f.String(), c.text):
			t.Errorf("%d %s: %q, %q", c.status, c.body, f.Cause(), f)
		}
		if f := answers.Take(); f != nil {
			t.Errorf("%d: kept %v", c.status, f)
		}
		upstream.Close()
	}
}

// TestCauseOfRefusals checks the causes of requests that the gateway itself refuses.
func TestCauseOfRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	answers := &model.Answers{}
	w.grant.Answers = answers
	w.serve(t, w.Handler(w.grant))
	good := model.Credential{Kind: model.APIKey, Value: secretKey}
	for _, c := range []struct {
		c     model.Credential
		err   error
		left  float64
		token string
		want  cause.Cause
		text  string
	}{
		{good, nil, 0, w.Token("ses_1"), cause.Cost, "limit of cost"},
		{model.Credential{}, nil, 1, w.Token("ses_1"), cause.Key, "harvest secret set"},
		{good, errors.Newf(errors.Unavailable, "the key file is missing"), 1, w.Token("ses_1"), "", "key file"},
	} {
		w.set(c.c, c.err, c.left)
		w.do(t, "POST", "/v1/messages", c.token, streamed)
		if f := answers.Take(); f == nil || f.Cause() != c.want || !strings.Contains(f.String(), c.text) {
			t.Errorf("%q: %v", c.text, f)
		}
	}
	w.set(good, nil, 1)
	w.do(t, "POST", "/v1/messages", w.Token("ses_2"), streamed)
	if f := answers.Take(); f != nil {
		t.Errorf("a request without the session's token: %v", f)
	}
	w.stub.Close()
	w.do(t, "POST", "/v1/messages", w.Token("ses_1"), streamed)
	if f := answers.Take(); f == nil || f.Cause() != "" || !strings.Contains(f.String(), "cannot be reached") {
		t.Errorf("%v", f)
	}
}
