package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/modal"
)

func TestModalCallsAreInTheAuditLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := &App{}
	var err error
	if a.audit, err = openAudit(dir); err != nil {
		t.Fatal(err)
	}
	a.auditModal(t.Context(), modal.Call{Account: "acme", KeyID: "key_1", Address: "10.0.0.1:99",
		Method: "/s/QueueGet", Code: codes.PermissionDenied})
	a.auditModal(t.Context(), modal.Call{Method: "/s/X", Code: codes.DataLoss})
	const known = "CANARY-known-secret-of-calls"
	release := logf.Redact(known)
	a.auditModal(t.Context(), modal.Call{Method: "connect/" + known + "/hv_" + strings.Repeat("a2", 26)})
	release()
	if err := a.audit.Close(); err != nil {
		t.Fatal(err)
	}
	a.auditModal(t.Context(), modal.Call{Method: "/s/Lost"}) // only the log has it
	text, err := os.ReadFile(filepath.Join(dir, auditName))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0],
		`"account":"acme","key_id":"key_1","address":"10.0.0.1","method":"gRPC","path":"/s/QueueGet","status":403`) ||
		!strings.Contains(lines[1], `"status":500`) ||
		!strings.Contains(lines[2], `"path":"connect/`+logf.Hidden+"/"+logf.Hidden+`"`) {
		t.Errorf("%s", text)
	}
}
