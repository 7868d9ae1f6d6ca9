package model

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/RelevanceAI/harvest/internal/session/cause"
)

// Failure is an answer of a model's API that is an error.
type Failure struct {
	Status  int    // HTTP status; 0 if there was no answer
	Type    string // error type of the API, such as authentication_error
	Message string // of the API
	// Own is the cause of a refusal by the gateway itself, which the API would not explain.
	Own cause.Cause
}

// typed are the causes that an error type names.
var typed = map[string]cause.Cause{
	"billing_error": cause.Credit, "insufficient_quota": cause.Credit, "billing_hard_limit_reached": cause.Credit,
	"billing_not_active":   cause.Credit,
	"authentication_error": cause.Key, "permission_error": cause.Key, "invalid_api_key": cause.Key,
	"API_KEY_INVALID": cause.Key, "PERMISSION_DENIED": cause.Key, "UNAUTHENTICATED": cause.Key,
	"model_not_found":         cause.Model,
	"context_length_exceeded": cause.Length,
}

// Cause returns the reason why the same request would fail again, or "".
//
// Types and statuses: https://docs.claude.com/en/api/errors,
// https://docs.aws.amazon.com/bedrock/latest/userguide/troubleshooting-api-error-codes.html,
// https://platform.openai.com/docs/guides/error-codes and https://ai.google.dev/gemini-api/docs/troubleshooting. Some
// causes share their type with all other invalid requests, so that only the message distinguishes them.
func (f Failure) Cause() cause.Cause {
	message := strings.ToLower(f.Message)
	invalid := f.Status == http.StatusBadRequest
	switch {
	case f.Own != "":
		return f.Own
	case typed[f.Type] != "":
		return typed[f.Type]
	case f.Status == http.StatusPaymentRequired, invalid && strings.Contains(message, "credit balance"):
		return cause.Credit
	case f.Status == http.StatusUnauthorized, f.Status == http.StatusForbidden:
		return cause.Key
	case f.Status == http.StatusNotFound, invalid && strings.Contains(message, "model identifier is invalid"):
		return cause.Model
	case f.Status == http.StatusRequestEntityTooLarge, invalid && (strings.Contains(message, "too long") ||
		strings.Contains(message, "maximum number of tokens")):
		return cause.Length
	}
	return ""
}

// String describes the failure for users.
func (f Failure) String() string {
	if f.Own != "" || f.Status == 0 && f.Type == "" {
		return f.Message
	}
	what := map[cause.Cause]string{
		cause.Credit: "the account of the model's API has no credit",
		cause.Key:    "the model's API refused the credential",
		cause.Model:  "the model's API does not know the model",
		cause.Length: "the prompt is too long for the model",
	}[f.Cause()]
	detail := f.Type
	if f.Status != 0 {
		detail = strings.TrimPrefix(fmt.Sprintf("%s, status %d", f.Type, f.Status), ", ")
	}
	return fmt.Sprintf("%s: %s (%s)", cmp.Or(what, "the model's API failed"),
		cmp.Or(f.Message, http.StatusText(f.Status), "no reason given"), detail)
}

// Answers keeps the result of the last request of a session to a model. The zero value is ready for use; it is safe for
// concurrent use.
type Answers struct {
	mu   sync.Mutex
	last *Failure
}

// Note records an answer; nil is a success.
func (a *Answers) Note(f *Failure) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = f
}

// Take returns the failure of the last request, and forgets it; nil if the request succeeded or there was none.
func (a *Answers) Take() *Failure {
	a.mu.Lock()
	defer a.mu.Unlock()
	last := a.last
	a.last = nil
	return last
}

// maxFailure bounds the part of an error that the gateway reads.
const maxFailure = 64 << 10

// failureOf returns the failure in an answer, whose body can still be read as a whole, or nil.
func failureOf(resp *http.Response) *Failure {
	if resp.StatusCode < http.StatusBadRequest {
		return nil
	}
	head, err := io.ReadAll(io.LimitReader(resp.Body, maxFailure))
	rest := io.Reader(resp.Body)
	if err != nil {
		rest = failing{err}
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), rest), resp.Body}
	f := failureIn(head)
	f.Status = resp.StatusCode
	if kind, _, _ := strings.Cut(resp.Header.Get("X-Amzn-ErrorType"), ":"); f.Type == "" {
		f.Type = kind
	}
	return &f
}

// apiError is an error of any of the APIs, or its text.
type apiError struct {
	Type    string
	Code    any    // of OpenAI: a word; of OpenRouter and Google: the status
	Status  string // of Google
	Message string
	Details []struct{ Reason string } // of Google
}

// UnmarshalJSON implements json.Unmarshaler.
func (e *apiError) UnmarshalJSON(data []byte) error {
	type plain apiError
	if json.Unmarshal(data, (*plain)(e)) != nil { // keeps the fields that it could read
		_ = json.Unmarshal(data, &e.Message)
	}
	return nil
}

// failure returns the error as a Failure without a status. The most specific word is the type.
func (e apiError) failure() Failure {
	f := Failure{Type: cmp.Or(e.Status, e.Type), Message: e.Message}
	if code, ok := e.Code.(string); ok && code != "" {
		f.Type = code
	}
	for _, d := range e.Details {
		if typed[d.Reason] != "" {
			f.Type = d.Reason
		}
	}
	return f
}

// cmpError returns e, or other if e is nil.
func cmpError(e *apiError, other apiError) apiError {
	if e == nil {
		return other
	}
	return *e
}

// failureIn parses an error.
func failureIn(data []byte) Failure {
	data = bytes.TrimSpace(data)
	if bytes.HasPrefix(data, []byte("[")) { // a stream of Gemini that is an array
		var all []json.RawMessage
		if json.Unmarshal(data, &all) == nil && len(all) > 0 {
			data = all[0]
		}
	}
	var body struct {
		Error   apiError
		Message string
	}
	_ = json.Unmarshal(data, &body) // an unreadable error has only its status
	f := body.Error.failure()
	f.Message = cmp.Or(f.Message, body.Message)
	return f
}

// failing is a reader of which only the error is left.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
