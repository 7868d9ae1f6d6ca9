package server

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// visit collects data about a request while it is processed.
type visit struct {
	who     account.Principal
	audited bool
}

type visitKey struct{}

func visitOf(ctx context.Context) *visit {
	v, _ := ctx.Value(visitKey{}).(*visit)
	return v
}

// refused reports whether a status is a refusal. Refusals are in the audit log even for requests that only read.
func refused(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests, http.StatusMisdirectedRequest:
		return true
	}
	return false
}

// signedIn records the account and the ID of a new sign-in in the request's audit line.
func signedIn(r *http.Request, ring *account.Ring, secret config.Secret) {
	if v := visitOf(r.Context()); v != nil {
		// The secret was just created, so this only looks it up.
		if who, err := ring.Authenticate(r.Context(), account.SignIn, secret.Reveal()); err == nil {
			v.who = who
		}
	}
}

// audit writes the audit line of a completed request. Failures to write it are logged but do not fail the request.
func (s *Server) audit(r *http.Request, v *visit, status int) {
	if s.opts.Audit == nil || !v.audited && !refused(status) {
		return
	}
	ctx := r.Context()
	line := api.AuditLine{
		Time: time.Now().UTC(), RequestID: edge.RequestID(ctx), Account: v.who.Account, KeyID: v.who.KeyID,
		Method: r.Method, Path: r.URL.Path, Status: status,
	}
	if from := peerOf(ctx); !from.local {
		line.Address = from.addr.String()
	}
	text := append([]byte(logf.Redacted(string(edge.Marshal(line)))), '\n')
	s.auditing.Lock()
	defer s.auditing.Unlock()
	if _, err := s.opts.Audit.Write(text); err != nil {
		logf.Errorf(ctx, "write the audit log: %v", err)
	}
}

// auditShown limits the listing to the end of the audit log, in bytes.
const auditShown = 2 << 20

// listAudit lists the changes of the account; for the operator, those of all accounts.
func (s *Server) listAudit(w http.ResponseWriter, r *http.Request) error {
	if s.opts.AuditFile == "" {
		return edge.Lacks("audit log")
	}
	end, err := tailOf(s.opts.AuditFile, auditShown)
	if err != nil {
		return err
	}
	who := edge.PrincipalOf(r.Context())
	var found []api.AuditLine
	for text := range bytes.Lines(end) {
		var line api.AuditLine
		// Skip lines that tailOf or a crash has cut.
		if json.Unmarshal(text, &line) == nil && (line.Account == who.Account || who.MustBeOperator() == nil) {
			found = append(found, line)
		}
	}
	key := func(l api.AuditLine) string { return l.Time.Format(auditOrder) + l.RequestID }
	slices.SortStableFunc(found, func(a, b api.AuditLine) int { return strings.Compare(key(b), key(a)) })
	return edge.Paged(s.settings, w, r, found, true, key, func(l api.AuditLine) api.AuditLine { return l })
}

// auditOrder is a time format whose lexical order is the chronological order.
const auditOrder = "20060102150405.000000000"

// tailOf returns the last bytes of a file, at most n; none if the file does not exist.
func tailOf(name string, n int64) ([]byte, error) {
	f, err := os.Open(name)
	if errors.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, errors.Wrapf(err, "open the audit log")
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Wrapf(err, "stat the audit log")
	}
	data, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-n), n))
	return data, errors.Wrapf(err, "read the audit log")
}

// doctor checks the machine.
func (s *Server) doctor(w http.ResponseWriter, r *http.Request) error {
	if s.opts.Doctor == nil {
		return edge.Lacks("doctor")
	}
	return edge.Respond(w, http.StatusOK, api.List[api.Finding]{Data: s.opts.Doctor(r.Context())})
}
