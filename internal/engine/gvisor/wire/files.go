package wire

import (
	"encoding/json"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// maxFiles is the kernel's limit of files in one message.
const maxFiles = 253

// SendFiles sends open files when the keeper awaits them: ReceiveFiles. Without files, it does nothing.
func (c *Conn) SendFiles(files []*os.File) error {
	if len(files) == 0 {
		return nil
	}
	k, b, err := c.Receive()
	if err != nil {
		return err
	}
	var n int
	if k != KindFiles {
		_, err := decodeReply(k, b)
		return errors.Join(err, errors.Errorf("the keeper expects no files"))
	}
	if err := json.Unmarshal(b, &n); err != nil || n != len(files) {
		return errors.Errorf("the keeper expects %d files, not %d: %v", n, len(files), err)
	}
	socket, ok := c.Conn.(*net.UnixConn)
	if !ok {
		return errors.Errorf("connections of the type %T carry no files", c.Conn)
	}
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	_, _, err = socket.WriteMsgUnix([]byte{byte(KindFiles)}, unix.UnixRights(fds...), nil)
	return errors.Explainf(err, errors.Unavailable, "the connection to the sandbox broke")
}

// ReceiveFiles asks the client for n open files and receives them. The client must not send anything else meanwhile.
func (c *Conn) ReceiveFiles(n int) (files []*os.File, err error) {
	socket, ok := c.Conn.(*net.UnixConn)
	if !ok || n > maxFiles || c.r.Buffered() > 0 {
		return nil, errors.Errorf("%d files over a connection of the type %T", n, c.Conn)
	}
	if err := c.SendJSON(KindFiles, n); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
			files = nil
		}
	}()
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	_, length, _, _, err := socket.ReadMsgUnix(make([]byte, 1), oob) // it sets close-on-exec
	if err != nil {
		return nil, errors.Explainf(err, errors.Unavailable, "the connection to the sandbox broke")
	}
	messages, err := unix.ParseSocketControlMessage(oob[:length])
	if err != nil {
		return nil, errors.Wrapf(err, "parse the message with files")
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return files, errors.Wrapf(err, "parse the message with files")
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "mount"))
		}
	}
	if len(files) != n {
		return files, errors.Errorf("received %d files, not %d", len(files), n)
	}
	return files, nil
}
