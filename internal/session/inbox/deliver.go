package inbox

import (
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// deliver sends a receiver its items, one after the other, until the Box is closed. While an item fails, the others
// wait: the receiver is probably down.
func (b *Box) deliver(r Receiver, bit int, wake <-chan struct{}) {
	for {
		select {
		case <-b.ctx.Done():
			return
		case <-wake:
		}
		for pause := b.opts.Pause; !b.deliverDue(r, bit); pause = min(2*pause, longPause) {
			timer := time.NewTimer(pause)
			select {
			case <-b.ctx.Done():
				timer.Stop()
				return
			case <-timer.C:
			}
		}
	}
}

// deliverDue sends the items that are due. It reports false if one of them must be sent again.
func (b *Box) deliverDue(r Receiver, bit int) bool {
	due, err := b.opts.Store.DueItems(b.ctx, bit)
	if err != nil {
		logf.Errorf(b.ctx, "read the inbox: %v", err)
		return b.ctx.Err() != nil
	}
	for _, item := range due {
		err := r.Send(b.ctx, item)
		switch {
		case b.ctx.Err() != nil:
			return true
		case err == nil:
		case errors.KindOf(err) == errors.Invalid || time.Since(item.Since) > b.opts.GiveUp:
			logf.Errorf(b.ctx, "notify of the inbox item %s: %v; it is not sent again", item.ID, err)
		default:
			logf.Warnf(b.ctx, "notify of the inbox item %s: %v", item.ID, err)
			return false
		}
		if err := b.opts.Store.Delivered(b.ctx, item, bit); err != nil {
			logf.Errorf(b.ctx, "record the notification of the inbox item %s: %v", item.ID, err)
			return false
		}
	}
	return true
}
