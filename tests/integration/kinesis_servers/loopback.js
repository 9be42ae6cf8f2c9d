// Loaded before an emulator: it listens on the loopback interface only, whatever it was told.
const { Server } = require("net");
const listen = Server.prototype.listen;
Server.prototype.listen = function (first, ...rest) {
  const port = typeof first === "object" && first !== null ? first.port : first;
  const callback = rest.find((each) => typeof each === "function");
  return listen.call(this, { port: Number(port), host: "127.0.0.1" }, callback);
};
