cat >~/server.py <<'P'
import os
import pathlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

lock = threading.Lock()
total = 0


class Handler(BaseHTTPRequestHandler):
    def reply(self, status, body=""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_GET(self):
        if self.path == "/total":
            self.reply(200, str(total))
        else:
            self.reply(404)

    def do_POST(self):
        global total
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/add":
            return self.reply(404)
        try:
            number = int(body)
        except ValueError:
            return self.reply(400)
        with lock:
            total += number
            answer = total
        self.reply(200, str(answer))


class Server(ThreadingHTTPServer):
    request_queue_size = 128


server = Server(("127.0.0.1", 0), Handler)
home = pathlib.Path.home()
(home / "server.pid").write_text(str(os.getpid()))
(home / "server.port").write_text(str(server.server_port))
server.serve_forever()
P
cd ~ && (setsid nohup python3 server.py >server.log 2>&1 </dev/null &)
until [ -s server.port ]; do sleep 0.05; done
