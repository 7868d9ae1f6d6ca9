package edge

import (
	"context"
	"net/http"

	"github.com/coder/websocket"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
)

// IsUpgrade reports whether a request asks for another protocol, such as a WebSocket.
func IsUpgrade(r *http.Request) bool { return r.Header.Get("Upgrade") != "" }

// Accept upgrades a request to a WebSocket. The caller is already authenticated and, if a cookie was used, its page
// was checked. The connection is closed with the reason when the key of the request ends.
func Accept(w http.ResponseWriter, r *http.Request) (*websocket.Conn, func(), error) {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(r.Context(), func() {
		if why := account.Ended(r.Context()); why != nil {
			_ = conn.Close(websocket.StatusPolicyViolation, errors.Message(why))
		}
	})
	return conn, func() { stop(); _ = conn.CloseNow() }, nil
}
