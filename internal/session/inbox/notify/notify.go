// Package notify sends inbox items to the receivers that the operator has configured: a webhook and a command.
package notify

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/inbox"
)

// AllAccounts in Choice.Accounts means every account.
const AllAccounts = "*"

// Choice says which items a receiver gets.
type Choice struct {
	Kinds    []inbox.Kind
	Accounts []string
}

// Wants implements inbox.Receiver.
func (c Choice) Wants(item inbox.Item) bool {
	return slices.Contains(c.Kinds, item.Kind) &&
		(slices.Contains(c.Accounts, item.Account) || slices.Contains(c.Accounts, AllAccounts))
}

// message is the JSON that a receiver gets.
type message struct {
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"` // as the item's since
	Data      data      `json:"data"`
}

type data struct {
	Account string `json:"account"`
	inbox.Item
}

// encode returns the message for an item. It is the same each time, so that receivers recognize a second one.
func encode(item inbox.Item) ([]byte, error) {
	text, err := json.Marshal(message{inbox.EventAdded, item.Since, data{item.Account, item}})
	if err != nil {
		return nil, errors.Explainf(err, errors.Invalid, "encode an inbox item")
	}
	return text, nil
}

// None is a receiver that gets nothing.
type None struct{}

// Wants implements inbox.Receiver.
func (None) Wants(inbox.Item) bool { return false }

// Send implements inbox.Receiver: items that were due for an earlier receiver are dropped.
func (None) Send(context.Context, inbox.Item) error { return nil }
