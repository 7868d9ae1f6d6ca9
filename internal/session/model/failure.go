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

// Cause returns the reason why the same request would fail again, or "".
//
// Types and statuses: https://docs.claude.com/en/api/errors and
// https://docs.aws.amazon.com/bedrock/latest/userguide/troubleshooting-api-error-codes.html. Two causes share the type
// invalid_request_error with all other invalid requests, so that only the message distinguishes them.
func (f Failure) Cause() cause.Cause {
	message := strings.ToLower(f.Message)
	invalid := f.Status == http.StatusBadRequest
	switch {
	case f.Own != "":
		return f.Own
	case f.Type == "billing_error", f.Status == http.StatusPaymentRequired,
		invalid && strings.Contains(message, "credit balance"):
		return cause.Credit
	case f.Status == http.StatusUnauthorized, f.Status == http.StatusForbidden, f.Type == "authentication_error",
		f.Type == "permission_error":
		return cause.Key
	case f.Status == http.StatusNotFound, invalid && strings.Contains(message, "model identifier is invalid"):
		return cause.Model
	case f.Status == http.StatusRequestEntityTooLarge, invalid && strings.Contains(message, "too long"):
		return cause.Length
	}
	return ""
}

// String describes the failure for users.
func (f Failure) String() string {
	if f.Own != "" || f.Status == 0 {
		return f.Message
	}
	what := map[cause.Cause]string{
		cause.Credit: "the account of the model's API has no credit",
		cause.Key:    "the model's API refused the credential",
		cause.Model:  "the model's API does not know the model",
		cause.Length: "the prompt is too long for the model",
	}[f.Cause()]
	detail := fmt.Sprintf("status %d", f.Status)
	if f.Type != "" {
		detail = f.Type + ", " + detail
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

// failureIn parses an error of Anthropic's API or of Bedrock.
func failureIn(data []byte) Failure {
	var body struct {
		Error   struct{ Type, Message string }
		Message string
	}
	_ = json.Unmarshal(data, &body) // an unreadable error has only its status
	return Failure{Type: body.Error.Type, Message: cmp.Or(body.Error.Message, body.Message)}
}

// failing is a reader of which only the error is left.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
