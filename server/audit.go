package server

import (
	"context"
	"net/http"
	"time"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/logf"
)

// auditLine is a line of the audit log: who did what. Bodies and queries are not in it, since they may have secrets.
type auditLine struct {
	Time      time.Time `json:"time"`
	RequestID string    `json:"request_id"`
	Account   string    `json:"account"`
	KeyID     string    `json:"key_id,omitempty"` // none: by the Unix socket
	Address   string    `json:"address,omitempty"`
	Method    string    `json:"method"`
	Path      string    `json:"path"`
	Status    int       `json:"status"`
}

// visit is what becomes known of a request while it is worked on.
type visit struct {
	who     account.Principal
	audited bool
}

type visitKey struct{}

func visitOf(ctx context.Context) *visit {
	v, _ := ctx.Value(visitKey{}).(*visit)
	return v
}

// audit writes the line of a request that is done. A log that cannot be written must not stop the work, but is reported.
func (s *Server) audit(r *http.Request, v *visit, status int) {
	if s.opts.Audit == nil || !v.audited {
		return
	}
	ctx := r.Context()
	line := auditLine{
		Time: time.Now().UTC(), RequestID: requestID(ctx), Account: v.who.Account, KeyID: v.who.KeyID,
		Method: r.Method, Path: r.URL.Path, Status: status,
	}
	if from := peerOf(ctx); !from.local {
		line.Address = from.addr.String()
	}
	text := append([]byte(logf.Redacted(string(marshal(line)))), '\n')
	s.auditing.Lock()
	defer s.auditing.Unlock()
	if _, err := s.opts.Audit.Write(text); err != nil {
		logf.Errorf(ctx, "write the audit log: %v", err)
	}
}
